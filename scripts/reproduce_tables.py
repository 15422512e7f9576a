#!/usr/bin/env python3
"""Writes docs/reproduce.md from what scripts/reproduce.sh measured: reproduce_tables.py FOLDER ROOT > FILE

Every section says the model, the command and the intervals; what agrees with the paper and what does not is in
scripts/reproduce_notes.md, a part "## SECTION" each, written by hand after looking at the tables.
"""
import json
import math
import os
import pathlib
import re
import subprocess
import sys

folder, root = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])


def load(path):
    return json.loads(path.read_text()) if path.exists() else None


def read_notes():
    path = root / "scripts/reproduce_notes.md"
    parts = re.split(r"^## (\S+)\n", path.read_text() if path.exists() else "", flags=re.M)
    return dict(zip(parts[1::2], (p.strip() for p in parts[2::2])))


notes = read_notes()
models = [m for m in ("tiny-gdn-pure", "tiny-gdn", "tiny-kda") if (folder / m).is_dir()]


def number(x):
    return "-" if x is None or not math.isfinite(x) else f"{x:.2e}"


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(str(c) for c in row) + " |")
    print()


def score(cell, first):
    """Right answers in %, and the paired difference to the first method."""
    if cell is None:
        return "-"
    if first:
        return f"{100 * cell['score']:.1f} [{100 * cell['low']:.0f}, {100 * cell['high']:.0f}]"
    return f"{100 * cell['score']:.1f} ({100 * cell['difference']:+.1f} ± {100 * cell['half']:.1f})"


def packed(result, method):
    for group in ("tasks", "nll", "drift"):
        for of in result.get(group, {}).values():
            if method in of and of[method].get("state_packed") is not None:
                return f"{of[method]['state_packed']:,}"
    return "-"


def text_cell(result, group, method):
    for of in result.get(group, {}).values():
        return of.get(method)
    return None


def method_row(result, method, first):
    row = [f"`{method}`", packed(result, method)]
    for of in result.get("tasks", {}).values():
        row.append(score(of.get(method), first))
    nll = text_cell(result, "nll", method)
    if result.get("nll"):
        if not nll or nll.get("diverged"):
            row += ["diverged" if nll else "-"] * 3
        else:
            last = nll["marks"][-1]
            row += [f"{nll['nll']:.4f}" if first else f"{nll['difference']:+.4f} ± {nll['difference_half']:.4f}",
                    number(last["mean"]), number(last["kl"])]
    if result.get("injected"):
        row.append(number((text_cell(result, "injected", method) or {}).get("rms")))
    if result.get("drift"):
        points = (text_cell(result, "drift", method) or {"points": [{}]})["points"]
        row += [number(points[-1].get("state_rms")), number(points[-1].get("state_max")),
                number(points[-1].get("output_rms"))]
    return row


def method_table(result, rows=None):
    """rows: (label before the method, method); None: all methods of the result."""
    methods = [m for m in result["methods"]]
    head = ["method", "state bytes"] + [t.replace(".jsonl", ", %") for t in result.get("tasks", {})]
    if result.get("nll"):
        head += ["NLL - fp32", "\\|Δ log p\\|", "KL"]
    if result.get("injected"):
        head.append("injected")
    if result.get("drift"):
        head += ["drift", "worst head", "output"]
    table(head, [method_row(result, m, i == 0) for i, m in enumerate(methods) if rows is None or m in rows])


def command(model, step):
    path = folder / model / f"{step}.command"
    if path.exists():
        print(f"```\n{path.read_text().strip()}\n```\n")


def counts(result):
    words = []
    for name, of in result.get("tasks", {}).items():
        cell = next(iter(of.values()))
        words.append(f"{name}: {cell['n']} problems, greedy")
    for name, of in result.get("nll", {}).items():
        marks = [c["marks"] for c in of.values() if c.get("marks")]
        if marks:
            span = marks[0][-2]["to"] + 1 if len(marks[0]) > 1 else 1
            words.append(f"{name}: {marks[0][-1]['to'] + 1:,} tokens, |Δ log p| and KL of tokens from {span:,} on")
    return "; ".join(words)


def section(key, title, about, steps):
    """One table a model; what the notes say of it."""
    if not any((folder / m / f"{s}.json").exists() for m in models for s in steps):
        return
    print(f"## {title}\n\n{about}\n")
    for model in models:
        for step in steps:
            result = load(folder / model / f"{step}.json")
            if not result:
                continue
            print(f"**{model}**. {counts(result)}.\n")
            if step == "drift":
                drift_table(result)
            else:
                method_table(result)
            command(model, step)
    if key in notes:
        print(notes[key] + "\n")


def drift_table(result):
    of = next(iter(result["drift"].values()))
    positions = [p["position"] for p in next(iter(of.values()))["points"]]
    shown = [p for p in positions if p in (16, 128, 1024, 2048, 8192, 16384, 65536)]
    rows = []
    for method, cell in of.items():
        by = {p["position"]: p for p in cell["points"]}
        rows.append([f"`{method}`"] + [number(by[p]["state_rms"]) for p in shown] + [number(cell["points"][-1]["output_rms"])])
    table(["method"] + [f"{p:,}" for p in shown] + ["output"], rows)


def selectors():
    names = ["random", "energy", "persistence", "error", "product"]
    if not any((folder / m / f"selector-{s}.json").exists() for m in models for s in names):
        return
    print("## DAMP, Tables 2 and 6: which key rows are protected\n\n`damp` (16 of 128 rows in FP16, 9.9 bits) with rows "
          "ranked by each selector. Persistence says nothing about the rows of a GDN head, which then stay in order.\n")
    for model in models:
        rows, head = [], None
        for name in names:
            result = load(folder / model / f"selector-{name}.json")
            if result:
                head = ["selector"] + [t.replace(".jsonl", ", %") for t in result["tasks"]] + [
                    "NLL - fp32", "\\|Δ log p\\|", "KL", "injected", "drift", "worst head", "output"]
                rows.append([name] + method_row(result, "damp", False)[2:])
        if rows:
            print(f"**{model}**. {counts(result)}.\n")
            table(head, rows)
            command(model, "selector-product")
    print(notes.get("selectors", "") + "\n")


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


def stability():
    rows, spectrum = [], []
    for model in models:
        c = load(folder / model / "layouts-damp.json")
        if not c:
            continue
        run = c["runs"][0]
        rows.append([model, c["documents"], f"{run['states']:,}", f"{100 * run['overlap']:.1f} %", f"{run['spearman']:.3f}",
                     f"{run['decay_spearman']:.3f}" if run["decay_spearman"] is not None else "-"])
        decays = [h["decay"] for h in run["heads"]]
        order = [x for x in run["decay_order"] if x is not None and x < 1]  # without each text with itself
        spectrum.append([model, len(decays)] + [f"{quantile(decays, q):.4f}" for q in (0.1, 0.5, 0.9)] +
                        [f"{max(decays):.5f}", f"{min(order):.3f} to {max(order):.3f}" if order else "-"])
    if not rows:
        return
    print("## DAMP, Table 5 and Figure 6: stability of the layout, spectrum of the decays\n\nTwo halves of the documents, "
          "disjoint, each rank the rows: how many of the 16 protected ones they share (by chance 12.5 %), and the rank "
          "correlation of all 128.\n")
    table(["model", "documents", "states a head", "overlap", "Spearman", "Spearman of the decays"], rows)
    print("Effective decay a_eff of the heads (KDA: geometric mean over the channels), and the correlation of their order "
          "between texts of prose, code, mathematics and a manual:\n")
    table(["model", "heads", "p10", "p50", "p90", "largest", "order between texts"], spectrum)
    for model in models:
        command(model, "layouts-damp")
    print(notes.get("stability", "") + "\n")


def storage():
    formats = load(folder / "formats.json")
    if not formats:
        return
    rows = []
    for m in next(v for v in formats.values() if isinstance(v, list) and v and "method" in v[0]):
        size = m.get("packed_bytes", m.get("packed"))
        if size:
            rows.append([f"`{m['method']}`", f"{size:,}", f"{8 * size / 16384:.3f}", f"{65536 / size:.2f}"])
    print("## Storage: a head of 128 x 128\n")
    table(["method", "bytes", "bits a value", "smaller than fp32 by"], rows)
    print("```\nebb formats --json\n```\n")
    print(notes.get("storage", "") + "\n")


def main():
    def git(*args):
        return subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True).stdout.strip()

    kept = folder / "commit"  # of the first run
    commit = kept.read_text().strip() if kept.exists() else git("rev-parse", "--short", "HEAD") or "unknown"
    quick = os.environ.get("QUICK")
    print("# The papers' tables on the bundled models\n")
    print("Made by `make reproduce`" + (" with QUICK=1: few problems and short texts, so wide intervals" if quick else "") +
          f", on the tree after commit {commit}. Intervals are 95 %: of scores "
          "Wilson's, in brackets, for fp32; of differences to fp32 (±) paired by problem or by 64 tokens. What the columns "
          "mean is in [eval.md](eval.md), what follows from them in [findings.md](findings.md). The models have 6 M "
          "parameters: the tables say what rounding does to them, not what it does to a model of 9 or 35 B.\n")
    print(notes.get("about", "") + "\n")
    section("methods", "LeapQuant, Table 1: methods at 8, 6 and 4 bits",
            "Baselines round at every token, as in the paper; `leap` once a window of 16.", ["methods"])
    section("parts", "LeapQuant, Table 2: what each part adds",
            "From rounding at every token, to once a window (`-w`; `int8-col-w` has LeapQuant's layout of scales, one a value "
            "column), to compensators without smoothing (`theta=0`), with it, and the least-squares scale that ebb adds.",
            ["parts"])
    section("windows", "LeapQuant, Table 3, left: the window", "`p` tokens a window, with r = 4 at 8 bits and 8 at 4.",
            ["windows"])
    section("ranks", "LeapQuant, Table 3, right, and Figure 6: compensators",
            "`r` of them with p = 16. *Injected* is what Figure 6 explains: how much of the state compensators and smoothing "
            "leave to be rounded badly.", ["ranks"])
    section("drift", "LeapQuant, Figure 3: drift of the state along a text", "RMS over heads after so many tokens.", ["drift"])
    section("damp", "DAMP, Table 1: formats and mixed precision",
            "The paper's formats: affine integers with FP16 scales by 32, a Hadamard matrix of 32 (`-h32`).", ["damp"])
    selectors()
    section("budget", "DAMP, Figure 5: how many rows to protect", "`rows` of 128 in FP16, 16 if not said; from none "
            "(`int8-h32`) to all (`fp16`).", ["budget"])
    section("needles", "DAMP, Table 4: a long context by format of the state",
            "In the place of RULER: one number in 5,000 tokens of text, asked for at the end. The model's attention layers can "
            "look it up, so it says less of the state than the tasks above.", ["needles"])
    stability()
    section("heads", "DAMP, Table 7: a budget by head",
            "The paper moves protected rows between fast and slow heads of equal mean; ebb has no rows by head. Its bits by "
            "head are `leap-mix`, at the bytes of `leap8`.", ["heads"])
    section("equal", "At equal bytes", "Windowed methods of all families, for [findings.md](findings.md).", ["equal"])
    storage()


main()

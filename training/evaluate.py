"""Exact answers of an exported model by state format, decoded in FP32 (decode.py), paired over the same problems.

usage: evaluate.py PRESET FOLDER --sets NAME|FILE.jsonl,... --formats fp32,int8,... [--problems N] [--out FILE.json]

A set is a file of problems ({"messages": [...], "answer": ...} a line) or a name of tasks.SETS. Right means every token
of the answer and the end of the turn. --decays prints what the heads forget, over a text. Also reports where the first
wrong token stood, as a share of the answer, and the difference to fp32 in points with its 95 % interval (paired).
"""
import argparse
import json
import math
import os
import random
import time
import zlib

import torch

import decode
import export
import tasks


def problems_of(name, count, tokenizer):
    out = []
    if name.endswith(".jsonl"):
        with open(name) as f:
            for line in list(f)[:count]:
                p = json.loads(line)
                out.append((p["messages"][0]["content"], p["answer"]))
    else:
        rng = random.Random(zlib.crc32(name.encode()))
        out = [tasks.SETS[name](rng) for _ in range(count)]
    return [(tokenizer.encode(tasks.prompt(u)).ids, tokenizer.encode(a + "<|im_end|>").ids) for u, a in out]


def score(model, problems, form, rows, decoded):
    """(right, share of the answer before the first wrong token), one of each a problem."""
    right, reach = [], []
    for at in range(0, len(problems), rows):
        prompts, answers = zip(*problems[at:at + rows])
        until = decode.right_until(model, prompts, answers, form, decoded)
        right += [n == len(a) for n, a in zip(until, answers)]
        reach += [n / len(a) for n, a in zip(until, answers)]
    return right, reach


def paired(right, base):
    """Difference in points and half its 95 % interval."""
    d = [float(x) - float(y) for x, y in zip(right, base)]
    mean = sum(d) / len(d)
    var = sum((x - mean)**2 for x in d) / max(1, len(d) - 1)
    return 100 * mean, 100 * 1.96 * math.sqrt(var / len(d))


@torch.no_grad()
def decays(model, tokenizer, path):
    """Mean decay of each head (GDN) or channel (KDA) a token, over the first 8,192 tokens of a text."""
    ids = torch.tensor([tokenizer.encode(open(path).read()[:60_000]).ids[:8192]])
    ids, seen, hooks = ids.to(model.model.norm.weight.device), {}, []
    for i, block in enumerate(model.model.layers):
        if not block.full:
            hooks.append(block.mixer.register_forward_pre_hook(
                lambda m, args, i=i: seen.__setitem__(i, m.gates(args[0])[0].mean((0, 1)).exp().flatten().cpu())))
    batch = decode.Batch(model, 1, ids.shape[1], decode.FORMATS["fp32"])
    batch.forward(ids, torch.tensor([ids.shape[1]], device=ids.device))
    for h in hooks:
        h.remove()
    return seen


def main():
    from tokenizers import Tokenizer
    p = argparse.ArgumentParser()
    p.add_argument("preset")
    p.add_argument("folder")
    p.add_argument("--sets", default="")
    p.add_argument("--formats", default="fp32")
    p.add_argument("--problems", type=int, default=96)
    p.add_argument("--rows", type=int, default=384, help="problems decoded together")
    p.add_argument("--until", type=float, default=math.inf, help="a Unix time after which no new run starts")
    p.add_argument("--skip-below", type=float, default=0.0,
                   help="leave the other formats out where the first one is right less often")
    p.add_argument("--decoded", action="store_true", help="prompts round states as often as answers do")
    p.add_argument("--decays", help="a text to measure decays on")
    p.add_argument("--out", help="JSON of every problem's result")
    a = p.parse_args()
    tokenizer = Tokenizer.from_file(a.folder + "/tokenizer.json")
    model = export.load(a.preset, a.folder, "cuda" if torch.cuda.is_available() else "cpu")
    results = {}
    for name in filter(None, a.sets.split(",")):
        problems = problems_of(name, a.problems, tokenizer)
        base = None
        for form in a.formats.split(","):
            if base and sum(base) < a.skip_below * len(base):
                continue
            if time.time() > a.until:
                print("out of time before", name, form, flush=True)
                continue
            start = time.time()
            right, reach = score(model, problems, decode.FORMATS[form], a.rows, a.decoded)
            base = base or right
            diff, half = paired(right, base)
            label = os.path.basename(name).replace(".jsonl", "")
            results[f"{label}/{form}"] = {"right": [int(x) for x in right], "reach": [round(x, 4) for x in reach]}
            print(f"{label:18s} {form:14s} n={len(right)} exact {sum(right) / len(right):.3f} "
                  f"reach {sum(reach) / len(reach):.3f} vs first {diff:+.1f} +- {half:.1f} points "
                  f"({time.time() - start:.0f}s)", flush=True)
            if a.out:
                with open(a.out, "w") as f:
                    json.dump(results, f)
    if a.decays:
        for i, d in decays(model, tokenizer, a.decays).items():
            d = d.sort().values
            shown = d if len(d) <= 8 else d[torch.linspace(0, len(d) - 1, 9).long()]
            print(f"layer {i} decay a token:", " ".join(f"{x:.6f}" for x in shown.tolist()), flush=True)


if __name__ == "__main__":
    main()

"""Four small texts for `ebb calibrate`, one a domain, stand-ins for the corpora of the papers.

usage: domains.py FOLDER [--system] [--bytes N]

  prose.txt        the end of models/eval/heldout_books.txt: what is measured on its beginning has not been seen
  code.txt         Python and C of this project; with --system Python's standard library of this machine
  mathematics.txt  problems with answers, generated from a fixed seed
  manual.txt       documents and headers of this project; with --system manual pages of this machine

Each has at most N bytes (72000) and ends with a line. The same tree gives the same bytes; models/eval/domains holds what
the layouts of models/tiny-gdn/layouts were made of.
"""
import argparse
import pathlib
import random
import subprocess
import sys
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parent.parent


def cut(text, size, from_end=False):
    """At most `size` bytes, whole lines."""
    kept, room = [], size
    lines = text.splitlines(keepends=True)
    for line in reversed(lines) if from_end else lines:
        room -= len(line.encode())
        if room < 0:
            break
        kept.append(line)
    return "".join(reversed(kept) if from_end else kept)


def join(paths, size):
    """Files one after another, until there is enough."""
    text = ""
    for path in paths:
        if len(text.encode()) >= size:
            break
        text += path.read_text(encoding="utf-8").rstrip("\n") + "\n\n\n"
    return cut(text, size)


def prose(size, system):
    return cut((ROOT / "models/eval/heldout_books.txt").read_text(encoding="utf-8"), size, from_end=True)


def code(size, system):
    if system:
        folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
        return join([p for p in sorted(folder.glob("*.py")) if p.stat().st_size > 2000], size)
    c = sorted(ROOT.glob("src/core/*.c")) + sorted(ROOT.glob("src/model/*.c"))
    python = sorted(ROOT.glob("training/*.py")) + sorted(ROOT.glob("tests/data/*.py"))
    return join(python, size // 2) + join(c, size - size // 2)


def manual(size, system):
    if not system:
        documents = [ROOT / "README.md"] + sorted(ROOT.glob("docs/*.md")) + sorted(ROOT.glob("docs/notes/*.md"))
        return join(documents, 3 * size // 4) + join(sorted(ROOT.glob("include/ebb/*.h")), size - 3 * size // 4)
    text = ""
    for page in ["bash", "find", "sed", "tar", "gcc", "git", "ssh", "perl"]:
        shown = subprocess.run(["man", page], capture_output=True, text=True, env={"MANWIDTH": "80", "PATH": "/usr/bin:/bin"})
        text += subprocess.run(["col", "-bx"], input=shown.stdout, capture_output=True, text=True).stdout
    if not text:
        sys.exit("domains.py: no manual pages here")
    return cut(text, size)


def problem(rng):
    a, b, c = rng.randint(2, 99), rng.randint(2, 99), rng.randint(2, 12)
    kind = rng.randrange(9)
    if kind == 0:
        return f"Calculate {a} + {b}.", f"{a + b}"
    if kind == 1:
        return f"What is {a * c} - {b}?", f"{a * c - b}"
    if kind == 2:
        return f"Multiply {a} and {b}.", f"{a * b}"
    if kind == 3:
        return f"Divide {a * b} by {b}.", f"{a}"
    if kind == 4:
        return f"Solve {c}*x + {b} = {c * a + b} for x.", f"x = ({c * a + b} - {b}) / {c} = {c * a} / {c} = {a}"
    if kind == 5:
        return f"Expand ({c}*y + {a})*(y - {b}).", f"{c}*y**2 + {a - c * b}*y - {a * b}"
    if kind == 6:
        return f"What is the derivative of {a}*z**{c} + {b}*z with respect to z?", f"{a * c}*z**{c - 1} + {b}"
    if kind == 7:
        rest = sorted(rng.sample(range(-99, 100), 5))
        mixed = rng.sample(rest, 5)
        return f"Sort {', '.join(map(str, mixed))} in increasing order.", ", ".join(map(str, rest))
    n, steps = a * b, []
    for p in range(2, n + 1):
        while n % p == 0:
            steps.append(p)
            n //= p
    return f"List the prime factors of {a * b}, with repetitions.", ", ".join(map(str, steps))


def mathematics(size, system):
    rng, text = random.Random(2026), ""
    while len(text) < size:
        question, answer = problem(rng)
        text += f"{question}\n{answer}\n\n"
    return cut(text, size)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--system", action="store_true")
    p.add_argument("--bytes", type=int, default=72000)
    a = p.parse_args()
    a.folder.mkdir(parents=True, exist_ok=True)
    for make in prose, code, mathematics, manual:
        text = make(a.bytes, a.system)
        (a.folder / f"{make.__name__}.txt").write_text(text, encoding="utf-8")
        print(f"{make.__name__}.txt: {len(text.encode())} bytes")


main()

"""Keep the best of several exported models: the one whose worst of the four main tasks is best, on fresh problems.

usage: choose.py PRESET OUT FOLDER FOLDER ... [--problems N]

Prints the exact answers of each, FP32 states, and copies the winner to OUT. The problems are those of tasks.SETS, drawn
from a seed of the set's name: none of ../models/eval.
"""
import argparse
import os
import shutil

import torch
from tokenizers import Tokenizer

import decode
import evaluate
import export

TASKS = ("registers-128", "overwrite-12x80", "copy-80", "recall-48")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("preset")
    p.add_argument("out")
    p.add_argument("folders", nargs="+")
    p.add_argument("--problems", type=int, default=384)
    a = p.parse_args()
    tokenizer = Tokenizer.from_file(a.folders[0] + "/tokenizer.json")
    sets = {name: evaluate.problems_of(name, a.problems, tokenizer) for name in TASKS}
    best = None
    for folder in a.folders:
        model = export.load(a.preset, folder, "cuda" if torch.cuda.is_available() else "cpu")
        scores = []
        for name, problems in sets.items():
            right, _ = evaluate.score(model, problems, decode.FORMATS["fp32"], 192, False)
            scores.append(sum(right) / len(right))
        print(os.path.basename(folder), " ".join(f"{n} {x:.3f}" for n, x in zip(TASKS, scores)), flush=True)
        key = (min(scores), sum(scores))
        if best is None or key > best[0]:
            best = (key, folder)
    print("kept", os.path.basename(best[1]), flush=True)
    shutil.copytree(best[1], a.out, dirs_exist_ok=True)


if __name__ == "__main__":
    main()

"""Average the weights of exported models of one shape: points of one training run average to a better model.

usage: average.py PRESET OUT FOLDER:WEIGHT FOLDER:WEIGHT ...
"""
import sys

from safetensors.torch import load_file

import export


def main():
    preset, out = sys.argv[1:3]
    parts = [(f, float(w)) for f, w in (a.rsplit(":", 1) for a in sys.argv[3:])]
    total = sum(w for _, w in parts)
    states = [load_file(f + "/model.safetensors") for f, _ in parts]
    mean = {k: sum(s[k].float() * (w / total) for s, (_, w) in zip(states, parts)) for k in states[0]}
    export.export(preset, mean, parts[0][0] + "/tokenizer.json", out)


if __name__ == "__main__":
    main()

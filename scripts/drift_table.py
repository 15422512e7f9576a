#!/usr/bin/env python3
"""Prints the JSON files of `ebb drift --json` (scripts/drift_all.sh) as one Markdown table, in the order of their names.

usage: drift_table.py FOLDER [POSITION ...]      positions: 256 1024 4096 16384 65536 unless given
"""
import json
import pathlib
import sys


def number(x):
    return f"{x:.2e}" if x is not None else "-"


def main():
    folder = pathlib.Path(sys.argv[1])
    positions = [int(p) for p in sys.argv[2:]] or [256, 1024, 4096, 16384, 65536]
    print("| method | bytes | " + " | ".join(f"{p:,}" for p in positions) + " | RMS | most | output RMS |")
    print("|" + "---|" * (len(positions) + 5))
    for path in sorted(folder.glob("*.json")):
        run = json.loads(path.read_text())
        if not run["complete"]:
            sys.exit(f"{path}: an interrupted run; expected a complete one")
        at = []
        for p in positions:
            if p not in run["positions"]:
                sys.exit(f"{path}: has no position {p}; it has {run['positions']}")
            at.append(run["positions"].index(p))
        for m in run["methods"]:
            values = [m["state_mean"][i] for i in at]
            last = at[-1]
            tail = [m["state_rms"][last], max(m["state_max"][: last + 1], key=lambda x: float("inf") if x is None else x),
                    m["output_rms"][last]]
            print(f"| {m['method']} | {m['packed_bytes']:,} | " + " | ".join(map(number, values + tail)) + " |")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes a task file of fresh problems for `ebb eval`: reproduce_tasks.py keep COLD HOT WRITES COUNT SEED > FILE

keep: COLD keys are written once, then WRITES writes go to HOT others, and all are asked for (training/tasks.py).
"""
import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "training"))
import tasks  # noqa: E402


def main():
    name, cold, hot, writes, count, seed = sys.argv[1], *map(int, sys.argv[2:])
    if name != "keep":
        sys.exit(f"reproduce_tasks.py: unknown task {name}, expected keep")
    rng = random.Random(seed)
    for i in range(count):
        user, answer = tasks.keep(rng, cold, hot, writes)
        print(json.dumps({"id": f"{name}-{i}", "messages": [{"role": "user", "content": user}], "answer": answer}))


main()

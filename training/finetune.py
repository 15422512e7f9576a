"""Finish a small hybrid on a CPU, in FP32: a short and cool training on problems of one mix, drawn as it goes.

usage: finetune.py PRESET MODEL OUT --steps N [--peak 2e-4] [--pool 12] [--rows 4] [--mix finish] [--seed 1]

Each step draws a pool of problems, runs them forward and learns from the --rows with the largest loss: a model that is
right nine times in ten has little to learn from the rest, and a forward pass costs a fifth of a step. The rate rises
for 3 steps and falls to 0 at the last. Problems of about one length share a step, so little of it is padding. OUT gets
the mean of the weights over the second half of the steps, OUT-last those of the last step. One thread is enough:
OMP_NUM_THREADS=1. The delta rule is that of chunks.py.
"""
import argparse
import random
import time

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import export
import tasks
from train import Muon

LONGEST = 2048  # tokens of a problem
WARM = 3  # steps


class Problems:
    """Pools of problems of one mix, neighbours in length."""

    def __init__(self, tokenizer, mix, seed, pool):
        self.tokenizer, self.mix, self.pool = tokenizer, mix, pool
        self.rng, self.ready = random.Random(f"finetune {seed}"), []

    def encode(self, text):
        """Ids and where the answer starts."""
        cut = text.index("<|im_start|>assistant\n") + len("<|im_start|>assistant\n")
        ids = self.tokenizer.encode(text[:cut]).ids
        return ids + self.tokenizer.encode(text[cut:].rstrip("\n")).ids, len(ids)

    def next(self):
        if not self.ready:
            many = []
            while len(many) < 4 * self.pool:
                ids, start = self.encode(tasks.sample(self.rng, "", self.mix))
                if len(ids) <= LONGEST:
                    many.append((ids, start))
            many.sort(key=lambda p: len(p[0]))
            self.ready = [many[i:i + self.pool] for i in range(0, len(many), self.pool)]
            self.rng.shuffle(self.ready)
        return self.ready.pop()


def losses(model, problems):
    """The summed loss of each problem's answer."""
    ids = torch.zeros(len(problems), max(len(p) for p, _ in problems) - 1, dtype=torch.long)
    for i, (p, _) in enumerate(problems):
        ids[i, :len(p) - 1] = torch.tensor(p[:-1])
    h, out = model(ids), []
    for i, (p, start) in enumerate(problems):
        logits = model.logits(h[i, start - 1:len(p) - 1])
        out.append(F.cross_entropy(logits, torch.tensor(p[start:]), reduction="sum"))
    return torch.stack(out)


class Tuner:
    """AdamW for vectors and embeddings, Muon for matrices, as train.py; and the mean of the weights."""

    def __init__(self, model):
        self.model, self.count = model, 0
        named = list(model.named_parameters())
        matrix = [n for n, p in named if p.dim() == 2 and "embed" not in n]
        self.rest = [p for n, p in named if n not in matrix]
        self.adam = torch.optim.AdamW(self.rest, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
        self.muon = Muon([p for n, p in named if n in matrix], decay=0.0)
        self.mean = [torch.zeros_like(p) for p in model.parameters()]

    def step(self, problems, rows, rate):
        """Returns the mean loss of the whole pool and how much of it the rows that were learned from have."""
        with torch.no_grad():
            before = losses(self.model, problems)
        picked = [problems[i] for i in before.topk(rows).indices.tolist()]
        answers = sum(len(p) - start for p, start in problems)
        (losses(self.model, picked).sum() / answers).backward()
        torch.nn.utils.clip_grad_norm_(self.rest, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        self.muon.step(rate)
        return float(before.mean()), float(before.topk(rows).values.sum() / before.sum())

    @torch.no_grad()
    def gather(self):
        self.count += 1
        for mean, p in zip(self.mean, self.model.parameters()):
            mean.lerp_(p, 1 / self.count)

    def take_mean(self):
        for mean, p in zip(self.mean, self.model.parameters()):
            p.data = mean


def main():
    p = argparse.ArgumentParser()
    p.add_argument("preset")
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("--steps", type=int, required=True)
    p.add_argument("--peak", type=float, default=2e-4, help="learning rate")
    p.add_argument("--pool", type=int, default=12, help="problems run forward each step")
    p.add_argument("--rows", type=int, default=4, help="problems of these learned from")
    p.add_argument("--mix", default="finish", help="prefix of a row of tasks.MIXES")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    torch.set_flush_denormal(True)
    tokenizer = Tokenizer.from_file(a.model + "/tokenizer.json")
    model = export.load(a.preset, a.model)
    problems, tuner = Problems(tokenizer, a.mix + "-short", a.seed, a.pool), Tuner(model)
    start = time.time()
    for step in range(a.steps):
        pool = problems.next()
        rate = a.peak * min((step + 1) / WARM, 1 - step / a.steps)
        loss, share = tuner.step(pool, a.rows, rate)
        print(f"step {step + 1} {time.time() - start:.0f}s ({time.process_time():.0f}s of CPU) "
              f"{sum(len(x) for x, _ in pool)} tokens lr {rate:.1e} loss {loss:.4f} a problem, "
              f"{share:.2f} of it learned from", flush=True)
        if 2 * step >= a.steps:
            tuner.gather()
    export.export(a.preset, model.state_dict(), a.model + "/tokenizer.json", a.out + "-last")
    tuner.take_mean()
    export.export(a.preset, model.state_dict(), a.model + "/tokenizer.json", a.out)


if __name__ == "__main__":
    main()

"""Train one of the small models on one GPU and export it.

usage: train.py PRESET DATA TOKENIZER.json OUT --seconds N|--until TIME [--init FILE] [--mix NAME]

PRESET is a row of model.PRESETS, DATA a folder that data.py is writing or has written. Several of these programs can
share a GPU. --init goes on from weights: a compact checkpoint, a model.safetensors or a state.pt. The rate stays at
--peak until the probes are --ready or the time is nearly over, then falls to 0 within --cool seconds, which ends it.
A running mean of the weights (of some 200 steps) is what probes see. OUT gets the Hugging Face folder of the mean
(every 100 s and at the end), OUT-last that of the last step, and done.
Needs torch, triton, tokenizers, safetensors, einops and fla-core. AdamW for vectors and embeddings, Muon for matrices.
"""
import argparse
import glob
import os
import random
import time
from collections import defaultdict

import numpy as np
import torch
import torch.nn.functional as F

import data
import export
import model as models
import tasks

SHORT, LONG = 2048, 8192
PROMPT_WEIGHT = 0.03  # of a prompt token in the loss; an answer token has 1
ROWS = {SHORT: (6, 18, 0), LONG: (1, 2, 3)}  # of a batch: text, short problems, long problems; 49,152 tokens
MEAN = 0.005  # share of a step in the running mean of the weights
# Problems whose whole answer must be right, watched while training.
# The first four decide whether the model is ready to cool down.
PROBES = {"hybrid": ["registers-128", "overwrite-12x80", "copy-80", "recall-48", "add-16", "rounds-8x32"],
          "pure": ["keep-16-8x80", "keep-32-8x300", "overwrite-12x80", "copy-80", "recall-48", "keep-32-8x1600"]}


def few_configurations():
    """Let Triton's autotuner try two configurations a kernel: a full search costs minutes."""
    from triton.runtime.autotuner import Autotuner
    init = Autotuner.__init__

    def limited(self, fn, arg_names, configs, *args, **kwargs):
        few = [c for c in configs if c.num_warps == 4 and c.num_stages in (2, 3)]
        few = few or [c for c in configs if c.num_stages in (2, 3)] or list(configs)
        init(self, fn, arg_names, [few[0], few[-1]] if len(few) > 1 else few, *args, **kwargs)

    Autotuner.__init__ = limited


class Stream:
    """The shards of one kind on the GPU; grows while data.py writes."""

    def __init__(self, folder, kind):
        self.pattern = f"{folder}/{kind}-[0-9][0-9][0-9].npy"
        self.seen, self.size = set(), 0
        self.tokens = torch.zeros(0, dtype=torch.int32, device="cuda")
        self.starts = torch.zeros(0, dtype=torch.long, device="cuda")

    def refresh(self):
        new = sorted(set(glob.glob(self.pattern)) - self.seen)
        if not new:
            return
        shards = [np.load(f).astype(np.int32) for f in new]
        starts = []
        for f, shard in zip(new, shards):
            starts.append(np.load(f.replace(".npy", ".starts.npy")) + self.size)
            self.size += len(shard)
        self.tokens = torch.cat([self.tokens] + [torch.from_numpy(s).cuda() for s in shards])
        starts = torch.cat([self.starts] + [torch.from_numpy(s).cuda() for s in starts])
        self.starts = starts[starts < self.size - LONG - 1]
        self.seen |= set(new)

    def wait(self):
        while not self.seen:
            self.refresh()
            if not self.seen:
                time.sleep(0.2)

    def rows(self, count, length, generator, anywhere):
        if anywhere:
            at = torch.randint(0, self.size - length - 1, (count,), device="cuda", generator=generator)
        else:
            at = self.starts[torch.randint(0, len(self.starts), (count,), device="cuda", generator=generator)]
        return self.tokens[at[:, None] + torch.arange(length + 1, device="cuda")].long()


class Muon:
    """Momentum, orthogonalised by five Newton-Schulz steps; matrices of one shape go together."""

    def __init__(self, matrices, decay=0.1):
        self.decay = decay
        self.groups = defaultdict(list)
        for p in matrices:
            self.groups[tuple(p.shape)].append(p)
        self.momentum = {k: torch.zeros(len(v), *k, device=v[0].device) for k, v in self.groups.items()}

    @torch.no_grad()
    def step(self, lr):
        for shape, params in self.groups.items():
            grad = torch.stack([p.grad for p in params])
            m = self.momentum[shape]
            m.lerp_(grad, 0.05)
            u = grad.lerp(m, 0.95).bfloat16()
            tall = shape[0] > shape[1]
            u = u.transpose(1, 2) if tall else u
            u = u / (u.float().norm(dim=(1, 2), keepdim=True) + 1e-7).bfloat16()
            for _ in range(5):
                a = u @ u.transpose(1, 2)
                u = 3.4445 * u + (-4.7750 * a + 2.0315 * a @ a) @ u
            u = (u.transpose(1, 2) if tall else u).float() * (0.2 * max(shape)**0.5)
            for p, x in zip(params, u):
                p.mul_(1 - lr * self.decay).sub_(x, alpha=lr)
                p.grad = None


class Trainer:
    def __init__(self, model, tokenizer):
        self.model = model
        self.open, self.user = tokenizer.token_to_id("<|im_start|>"), tokenizer.token_to_id("user")
        self.break_ = tokenizer.token_to_id("<|endoftext|>")
        named = list(model.named_parameters())
        matrix = [n for n, p in named if p.dim() == 2 and "embed" not in n]
        self.rest = [p for n, p in named if n not in matrix]
        self.adam = torch.optim.AdamW(self.rest, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        self.muon = Muon([p for n, p in named if n in matrix])
        self.mean = [p.detach().clone() for p in model.parameters()]

    def fresh(self, ids):
        """Where a document begins: a user's turn (problems have one turn), or a break in the corpus."""
        if not self.model.config.get("reset"):
            return None
        return ((ids[:, :-1] == self.open) & (ids[:, 1:] == self.user)) | (ids[:, :-1] == self.break_)

    def loss(self, ids, weights):
        with torch.autocast("cuda", torch.bfloat16):
            h = self.model(ids[:, :-1], fresh=self.fresh(ids))
            logits = self.model.logits(h).float().view(-1, self.model.config["vocab"])
        each = F.cross_entropy(logits, ids[:, 1:].reshape(-1), reduction="none").view(weights.shape)
        return (each * weights).sum() / weights.sum(), each

    def step(self, ids, weights, lr):
        loss, each = self.loss(ids, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.rest, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = lr
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        self.muon.step(lr)
        with torch.no_grad():
            torch._foreach_lerp_(self.mean, list(self.model.parameters()), MEAN)
        return each.detach()

    def swap(self):
        """Exchange the weights and their running mean."""
        for i, p in enumerate(self.model.parameters()):
            p.data, self.mean[i] = self.mean[i], p.data

    def warm_up(self):
        """Compile the kernels of both lengths; changes nothing."""
        for length in (SHORT, LONG):
            ids = torch.randint(0, 8000, (sum(ROWS[length]), length + 1), device="cuda")
            self.loss(ids, torch.ones(len(ids), length, device="cuda"))[0].backward()
        for p in self.model.parameters():
            p.grad = None
        torch.cuda.synchronize()


def probe_sets(tokenizer, names, count):
    sets = {}
    for name in names:
        rng = random.Random(name)
        problems = []
        for _ in range(count):
            user, answer = tasks.SETS[name](rng)
            problems.append((tokenizer.encode(tasks.prompt(user)).ids, tokenizer.encode(answer + "<|im_end|>").ids))
        sets[name] = problems
    return sets


@torch.no_grad()
def probe(model, problems):
    """Share of problems all of whose answer tokens are the likeliest, teacher-forced: what greedy decoding gives."""
    length = SHORT if max(len(p) + len(a) for p, a in problems) <= SHORT else LONG
    right, rows = 0, sum(ROWS[length])
    for at in range(0, len(problems), rows):
        part = problems[at:at + rows]
        ids = torch.zeros(rows, length, dtype=torch.long)
        for i, (p, a) in enumerate(part):
            ids[i, :len(p) + len(a)] = torch.tensor(p + a)
        with torch.autocast("cuda", torch.bfloat16):
            h = model(ids.cuda())
            for i, (p, a) in enumerate(part):
                best = model.logits(h[i, len(p) - 1:len(p) + len(a) - 1]).argmax(-1)
                right += best.tolist() == a
    return right / len(problems)


@torch.no_grad()
def heldout(model, tokenizer, path):
    ids = torch.tensor(tokenizer.encode(open(path).read()).ids)
    rows = ids[:len(ids) // (SHORT + 1) * (SHORT + 1)].view(-1, SHORT + 1)[:72].cuda()
    total = 0.0
    for at in range(0, len(rows), 24):
        part = rows[at:at + 24]
        with torch.autocast("cuda", torch.bfloat16):
            logits = model.logits(model(part[:, :-1])).float().view(-1, model.config["vocab"])
        total += float(F.cross_entropy(logits, part[:, 1:].reshape(-1), reduction="sum"))
    return total / (len(rows) * SHORT)


class Schedule:
    """60 steps of warm-up, the peak rate, then linearly to 0 within the last `cool` seconds."""

    def __init__(self, peak, seconds, cool):
        self.peak, self.start, self.length = peak, time.time(), min(cool, seconds)
        self.end = self.start + seconds

    def left(self):
        return max(0.0, self.end - time.time())

    def cooling(self):
        return self.left() < self.length

    def cool(self):
        self.end = min(self.end, time.time() + self.length)

    def rate(self, steps):
        return self.peak * min(1.0, (steps + 1) / 60, self.left() / self.length)


def batch(streams, rows, length, generator):
    text, short, long = rows
    ids = torch.cat([streams["text"].rows(text, length, generator, True),
                     streams["short"].rows(short, length, generator, False),
                     streams["long"].rows(long, length, generator, False)])
    answer = ids[:, 1:] >= data.ANSWER
    weights = torch.where(answer, 1.0, PROMPT_WEIGHT)
    weights[:text] = 1.0
    return ids & (data.ANSWER - 1), weights, answer


def losses(each, answer, rows):
    text, short, long = rows
    parts = [each[:text].mean()]
    for part in (slice(text, text + short), slice(text + short, text + short + long)):
        parts.append((each[part] * answer[part]).sum() / answer[part].sum().clamp(min=1))
    return [float(x) for x in parts]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("preset")
    p.add_argument("data")
    p.add_argument("tokenizer")
    p.add_argument("out")
    length = p.add_mutually_exclusive_group(required=True)
    length.add_argument("--seconds", type=float, help="of training at most, after compilation")
    length.add_argument("--until", type=float, help="a Unix time to stop at")
    p.add_argument("--init", help="weights to start from: compact, exported or state.pt")
    p.add_argument("--mix", help="of the problems in rows of 2,048: the prefix of a row of tasks.MIXES")
    p.add_argument("--peak", type=float, default=2e-3, help="learning rate, of AdamW and Muon alike")
    p.add_argument("--cool", type=float, default=150, help="seconds in which the rate falls to 0 at the end")
    p.add_argument("--ready", type=float, default=2, help="what each of the first four probes must reach to cool early")
    p.add_argument("--long", type=float, default=0, help="rows are 8,192 long in so many last seconds")
    p.add_argument("--text", type=int, default=6, help="rows of text among the 24 rows of 2,048")
    p.add_argument("--heldout", help="folder with heldout_books.txt and heldout_code.txt")
    a = p.parse_args()

    from tokenizers import Tokenizer
    few_configurations()
    torch.manual_seed(0)
    os.makedirs(a.out, exist_ok=True)
    tokenizer = Tokenizer.from_file(a.tokenizer)
    model = models.LM(models.PRESETS[a.preset]).cuda()
    if a.init:
        model.load_state_dict(export.read_state(a.init))
    trainer = Trainer(model, tokenizer)
    trainer.warm_up()
    family = "pure" if a.preset.endswith("pure") else "hybrid"
    streams = {"text": Stream(a.data, "text"), "short": Stream(a.data, (a.mix or family) + "-short"),
               "long": Stream(a.data, family + "-long")}
    for stream in streams.values():
        stream.wait()
    sets = probe_sets(tokenizer, PROBES[family], 48)
    generator = torch.Generator(device="cuda").manual_seed(1)
    print(a.preset, sum(x.numel() for x in model.parameters()), "parameters, warm", flush=True)

    start = last_probe = last_save = last_print = time.time()
    schedule = Schedule(a.peak, max(a.until - start, 1e-3) if a.until else a.seconds, a.cool)
    steps = tokens = 0
    while schedule.left():
        length = LONG if schedule.left() < a.long else SHORT
        rows = (a.text, 24 - a.text, 0) if length == SHORT else ROWS[LONG]
        ids, weights, answer = batch(streams, rows, length, generator)
        each = trainer.step(ids, weights, schedule.rate(steps))
        steps, tokens = steps + 1, tokens + answer.numel()
        if steps % 20:
            continue
        torch.cuda.synchronize()  # the clock sees what was done, not what was queued
        now = time.time()
        if now - last_print >= 15:
            last_print = now
            text, short, long = losses(each, answer, rows)
            print(f"step {steps} {now - start:.0f}s rows of {length} lr {schedule.rate(steps):.1e} "
                  f"loss: text {text:.3f} short {short:.4f} long {long:.4f}; "
                  f"{tokens / (now - start) / 1e6:.3f} M tokens/s", flush=True)
            for stream in streams.values():
                stream.refresh()
        if now - last_probe >= 45:
            last_probe = now
            trainer.swap()
            scores = {n: probe(model, s) for n, s in sets.items()}
            print("probe", f"{now - start:.0f}s", " ".join(f"{n} {x:.2f}" for n, x in scores.items()), flush=True)
            if now - last_save >= 90:
                last_save = now
                export.export(a.preset, model.state_dict(), a.tokenizer, a.out)
            trainer.swap()
            if min(list(scores.values())[:4]) >= a.ready and not schedule.cooling():
                schedule.cool()
                print("cools down", flush=True)
    print(f"trained: {steps} steps, {tokens / 1e6:.1f} M tokens, data:",
          {k: s.size for k, s in streams.items()}, flush=True)
    export.export(a.preset, model.state_dict(), a.tokenizer, a.out + "-last")
    trainer.swap()
    export.export(a.preset, model.state_dict(), a.tokenizer, a.out)
    open(a.out + "/done", "w").close()
    print("probe end", " ".join(f"{n} {probe(model, s):.3f}" for n, s in sets.items()), flush=True)
    if a.heldout:
        print("heldout", " ".join(f"{n} {heldout(model, tokenizer, f'{a.heldout}/heldout_{n}.txt'):.4f}"
                                  for n in ("books", "code")), flush=True)


if __name__ == "__main__":
    main()

"""Golden outputs of attention over low-bit KV stores and of the modes of prefill, for tests/test_hyquant.c.

usage: make_hyquant_golden.py OUT_DIR    writes OUT_DIR/hyquant_golden.txt (needs numpy)

Written from the definitions (include/ebb/kv.h, docs/hyquant.md) and not from the C: whole arrays in FP64, one query at a time; FP32 only
where a rounding to codes is defined in it. Inputs are the hash of tests/test_hyquant.c. It refuses sets of vertical keys that an FP32 sum
could choose otherwise. A conversation is a list of turns: (tokens, prompt or generated).
"""
import math, sys

import numpy as np

f4, f8, u8 = np.float32, np.float64, np.uint64
GRID, BLOCK = 256, 64
Q, K, V = 0, 1, 2


def mix64(x):
    with np.errstate(over="ignore"):
        x = x + u8(0x9E3779B97F4A7C15)
        x = (x ^ (x >> u8(30))) * u8(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> u8(27))) * u8(0x94D049BB133111EB)
        return x ^ (x >> u8(31))


def inputs(seq, what, tokens, heads, dims):
    t, h, d = np.meshgrid(np.arange(tokens, dtype=u8), np.arange(heads, dtype=u8), np.arange(dims, dtype=u8), indexing="ij")
    key = mix64(((u8((seq * 4 + what) << 20) + t) * u8(64) + h) * u8(1024) + d)
    x = ((key >> u8(11)).astype(f8) / 4503599627370496.0 - 1.0).astype(f4)
    third = d % u8(3) == 0
    if what == Q:
        x = x + np.where(third, f4(0.5), f4(0))
    if what == K:
        x = x + np.where(third & (mix64(u8(seq * 4096) + t) % u8(16) == 0), f4(1), f4(0))
    return x * f4(1.7)


# ---------------------------------------------------------------- codes of one part of one token
def encode(x, bits):
    """x [dims] FP32: integers and one FP32 scale, with code * scale the value."""
    if bits > 2:
        qmax = 2 ** (bits - 1) - 1
        s = f4(np.float16(max(np.abs(x).max(), f4(1e-5)) / f4(qmax)))
        return np.clip(np.rint(x / s), -qmax, qmax).astype(f8), f8(s)
    a = np.abs(x)
    s = np.sqrt(np.cumsum(a * a, dtype=f4)[-1] / f4(len(x)))
    for _ in range(4):
        c = np.where(a > s, f4(1.5), f4(0.5))
        s = np.cumsum(a * c, dtype=f4)[-1] / np.cumsum(c * c, dtype=f4)[-1]
    s = f4(np.float16(s))
    return np.sign(np.where(x == 0, 1, x)) * np.where(a > s, 3.0, 1.0), f8(s) / 2


def int8(x, scale=None):
    """x FP32 of any shape with one scale, max |x| / 127."""
    s = f4(np.abs(x).max() / f4(127)) if scale is None else scale
    return np.clip(np.rint(x / s), -127, 127).astype(f8), f8(s)


def half(x):
    return np.asarray(x, f4).astype(np.float16).astype(f8)


def e4m3(x):
    m, e = np.frexp(np.abs(x))
    step = np.exp2(np.maximum(e - 1, -6) - 3)
    return np.sign(x) * np.minimum(np.rint(np.abs(x) / step) * step, 448)


# ---------------------------------------------------------------- one conversation
class Case:
    def __init__(self, c):
        self.__dict__.update(c)
        self.tokens = sum(n for n, _ in self.turns)
        self.group = self.q_heads // self.heads
        self.scale = f8(f4(1) / np.sqrt(f4(self.dims)))
        self.q = inputs(self.seq, Q, self.tokens, self.q_heads, self.dims).astype(f8)
        k, v = inputs(self.seq, K, self.tokens, self.heads, self.dims), inputs(self.seq, V, self.tokens, self.heads, self.dims)
        if self.tail or self.bits is None:
            k, v = k.astype(np.float16).astype(f4), v.astype(np.float16).astype(f4)
        self.k, self.v = k.astype(f8), v.astype(f8)
        self.k4, self.vlow = np.zeros_like(self.k), np.zeros_like(self.v)
        self.ks = np.zeros((self.tokens, self.heads))
        for t in range(self.tokens if self.bits else 0):
            for h in range(self.heads):
                self.k4[t, h], self.ks[t, h] = encode(k[t, h], self.bits[0])
                c, s = encode(v[t, h], self.bits[1])
                self.vlow[t, h] = c * s
        self.kept = [set() for _ in range(self.heads)]  # vertical keys of the cache (select=segment: of prefill too)
        self.chosen_in = {}  # (head, key) -> the turn whose end chose it; not there: its interval's end
        self.marks = {}  # (turn, query head) -> vertical keys of prefill
        self.turn_of, self.begin_of = [], []
        at = 0
        for i, (n, _) in enumerate(self.turns):
            self.turn_of += [i] * n
            self.begin_of += [at] * n
            at += n
        self.choose()

    def chooses(self):
        return self.window if self.window else GRID

    def highest(self, query, head, first, end, count):
        score = self.k[first:end, head] @ query
        order = np.argsort(-score, kind="stable")
        if 0 < count < len(order):
            gap = score[order[count - 1]] - score[order[count]]
            assert gap > 1e-4 * np.abs(score).max(), "a near-tie: take other inputs"
        return set(int(first + j) for j in order[:count])

    def count(self, n):
        return max(1, math.ceil(n * self.ratio)) if n > 0 and self.ratio > 0 else 0

    def choose(self):
        if self.select == "segment":
            w = min(self.chooses(), GRID)
            for b in range(GRID, self.tokens + 1, GRID):
                for h in range(self.heads):
                    query = self.q[b - w:b, h * self.group:(h + 1) * self.group].mean(1).sum(0)
                    self.kept[h] |= self.highest(query, h, b - GRID, b, self.count(GRID))
        if self.select not in ("prompt", "paper"):
            return
        at, selected = 0, 0
        for i, (n, prompt) in enumerate(self.turns):
            begin, end = at, at + n
            at = end
            if not prompt:
                continue
            w = min(self.chooses(), n)
            bound = self.bound(begin) if self.tail else 0
            for h in range(self.heads):
                mean = self.q[end - w:end, h * self.group:(h + 1) * self.group].mean(1).sum(0)
                for g in range(self.group):
                    query, first = (self.q[end - w:end, h * self.group + g].sum(0), bound) if self.select == "paper" else (mean, max(bound, selected))
                    last = end - self.window
                    self.marks[i, h * self.group + g] = self.highest(query, h, first, last, self.count(last - first)) if last > first else set()
            last = end - self.window * (2 if self.select == "paper" else 1)
            if self.tail and last > selected:
                for h in range(self.heads):
                    query = self.q[end - w:end, h * self.group:(h + 1) * self.group].mean(1).sum(0)
                    new = self.highest(query, h, selected, last, self.count(last) - len(self.kept[h]))
                    self.kept[h] |= new
                    self.chosen_in.update({(h, j): i for j in new})
                selected = last

    def bound(self, i):
        if not self.tail:
            return i + 1 if self.bits else 0
        b = max(0, i - self.window) // 128 * 128
        return min(b, i // GRID * GRID) if self.select else b

    def output(self, i, head):
        h, turn = head // self.group, self.turn_of[i]
        prompt = self.turns[turn][1]
        mode = self.mode if prompt else "full"
        codes = self.bound(self.begin_of[i] if prompt and self.tail and self.select in ("prompt", "paper") else i)
        codes = min(codes, i + 1)
        low = 0
        if mode == "sage_w0":
            low = i + 1
        elif mode != "full":
            low = max(0, i // 128 * 128 - (self.window - 1)) // 64 * 64
            if mode in ("vquant_vert", "sparse_only"):
                low = min(low, i // GRID * GRID)
        q, qs = self.q[i, head], None
        if low:
            q8, qs = int8(q.astype(f4))
        logit, keep, lows = np.zeros(i + 1), np.ones(i + 1, bool), np.zeros(i + 1, bool)
        value = self.v[:i + 1, h].copy()
        for j in range(i + 1):
            coded = j < codes
            chosen = j in self.kept[h] and self.chosen_in.get((h, j), -1) < turn
            in_cache = coded and self.tail and chosen
            if self.select == "segment":
                marked = j in self.kept[h]
            else:
                marked = j in self.marks.get((turn, head), ()) or (self.select == "prompt" and chosen)
            if coded and self.tail:
                marked = in_cache
            marked = marked and mode in ("vquant_vert", "sparse_only")
            if coded and not in_cache:
                value[j] = self.vlow[j, h]
            if in_cache or j >= low or marked:
                key = self.k[j, h] if in_cache or not coded else self.k4[j, h] * self.ks[j, h]
                logit[j] = self.scale * (q @ key)
            elif mode == "sparse_only":
                keep[j] = False
            else:
                lows[j] = True
                b = j // BLOCK * BLOCK
                if coded:
                    logit[j] = self.scale * qs * self.ks[j, h] * (q8 @ self.k4[j, h])
                elif b + BLOCK <= i + 1:
                    block = self.k[b:b + BLOCK, h].astype(f4)
                    mean = block.mean(0, dtype=f8).astype(f4)
                    k8, s = int8(block - mean)
                    logit[j] = self.scale * (qs * s * (q8 @ k8[j - b]) + q @ mean.astype(f8))
                else:
                    k8, s = int8(self.k[j, h].astype(f4))
                    logit[j] = self.scale * qs * s * (q8 @ k8)
        return self.softmax(logit, value, keep, lows, mode)

    def softmax(self, logit, value, keep, lows, mode):
        """Block by block: weights are rounded beside the maximum so far."""
        top, total, out = -np.inf, 0.0, np.zeros(value.shape[1])
        for b in range(0, len(logit), BLOCK):
            use = np.flatnonzero(keep[b:b + BLOCK]) + b
            if not len(use):
                continue
            new = max(top, logit[use].max())
            w = np.exp(logit[use] - new)
            shrink = np.exp(top - new)
            total = total * shrink + w.sum()
            out, top = out * shrink, new
            eight = lows[use] if self.fp8 and mode != "full" else np.zeros(len(use), bool)
            out = out + (half(w[~eight]) if mode != "full" else w[~eight]) @ value[use][~eight]
            if eight.any():
                s = np.abs(value[use][eight]).max(0) / 448
                out = out + (e4m3(w[eight] * 448) @ e4m3(value[use][eight] / s)) * s / 448
        return out / total


def case(method, prefill, turns, bits=None, tail=True, window=256, ratio=0.05, select=None, mode="full", fp8=False, seq=1,
         q_heads=4, heads=2, dims=16):
    return dict(locals())


P, G = True, False
CASES = [
    case("k4v4", "full", [(300, P), (3, G)], (4, 4), False),
    case("k8v8:window=100", "full", [(500, P), (3, G)], (8, 8), window=100),
    case("k4v2-vert:window=128", "full", [(600, P), (40, G), (200, P)], (4, 2), window=128, select="segment"),
    case("k4v4-vert:window=64,select=prompt", "full", [(600, P), (140, G), (400, P), (3, G)], (4, 4), window=64, select="prompt", seq=2),
    case("k4v4-vert:window=64,select=paper", "full", [(600, P), (140, G), (400, P), (3, G)], (4, 4), window=64, select="paper", seq=3),
    case("fp16", "sage_w0", [(333, P), (2, G)], None, False, mode="sage_w0"),
    case("fp16", "sage_w:window=100,pv=fp8", [(600, P), (2, G)], None, False, window=100, mode="sage_w", fp8=True),
    case("fp16", "vquant_vert:window=70,ratio=0.1", [(900, P), (2, G), (200, P)], None, False, window=70, ratio=0.1, select="segment", mode="vquant_vert"),
    case("fp16", "vquant_vert:select=paper", [(900, P)], None, False, select="paper", mode="vquant_vert", seq=4),
    case("fp16", "sparse_only:window=64,select=prompt", [(700, P)], None, False, window=64, select="prompt", mode="sparse_only", seq=5),
    case("k4v4", "sage_w0", [(333, P)], (4, 4), False, mode="sage_w0"),
    case("hyquant:window=0", "vquant_vert:window=0", [(700, P), (9, G), (300, P)], (4, 4), window=0, select="segment", mode="vquant_vert", seq=6),
    case("hyquant", "vquant_vert", [(1100, P), (2, G)], (4, 4), select="segment", mode="vquant_vert", q_heads=3, heads=1, dims=24),
    case("hyquant:window=64,select=prompt", "vquant_vert:window=64,select=prompt", [(600, P), (140, G), (400, P), (2, G)], (4, 4), window=64, select="prompt",
         mode="vquant_vert", seq=7),
    case("hyquant:window=64,select=paper", "vquant_vert:window=64,select=paper", [(600, P), (140, G), (400, P), (2, G)], (4, 4), window=64, select="paper",
         mode="vquant_vert", seq=9),
]


def rows_of(c):
    at, rows = 0, set()
    for n, prompt in c.turns:
        rows |= {at, at + n - 1} | ({at + n // 3, at + 2 * n // 3 + 5} if prompt else set())
        at += n
    return sorted(r for r in rows if r < at)


def main():
    """Words and numbers apart by blanks: what each line is, how many numbers follow, the numbers."""
    with open(f"{sys.argv[1]}/hyquant_golden.txt", "w") as f:
        for description in CASES:
            c = Case(description)
            rows = rows_of(c)
            print("case", c.method, c.prefill, c.seq, c.q_heads, c.heads, c.dims, c.tokens, file=f)
            for n, prompt in c.turns:
                print("turn", n, int(prompt), file=f)
            for h in range(c.heads if c.tail and c.select else 0):
                print("kept", h, len(c.kept[h]), *sorted(c.kept[h]), file=f)
            for i in rows:
                print("row", i, *(f"{x:.6g}" for h in range(c.q_heads) for x in c.output(i, h)), file=f)
            print("end", file=f)
            print(c.method, c.prefill, len(rows), "rows", [len(s) for s in c.kept])


main()

"""Decoding of a batch in FP32 with states stored in a chosen format: the simulation behind evaluate.py.

It keeps the schedule of the library: a prompt is prefilled in pieces of 256 tokens and its state rounded after every
piece and at the end; an answer token updates the state and rounds it, at every token or at every 16th. Prompts can also
be taken as if they had been decoded, which rounds them as often as an answer. Matrices of a window are kept in FP32
between two roundings (the library reads them from FP16 records).
"""
import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # on a machine without: the recurrence in plain PyTorch
    triton = None

PIECE = 256  # tokens between two roundings of a prompt


# ---- one matrix [.., key, value] in a format and back ----


def round_int(x, qmax, bf16_scale=False, group=32):
    y = x.reshape(*x.shape[:-1], x.shape[-1] // group, group)
    s = y.abs().amax(-1, keepdim=True).clamp(min=1e-30) / qmax
    if bf16_scale:
        s = s.bfloat16().float()
    return ((y / s).round().clamp(-qmax, qmax) * s).reshape(x.shape)


def orthonormal(y):
    """Gram-Schmidt, twice, over the columns of y [.., n, r]."""
    u = torch.zeros_like(y)
    for m in range(y.shape[-1]):
        a = y[..., m:m + 1]
        before = a.norm(dim=-2, keepdim=True)
        for _ in range(2):
            if m:
                a = a - u[..., :m] @ (u[..., :m].transpose(-1, -2) @ a)
        after = a.norm(dim=-2, keepdim=True)
        u[..., m:m + 1] = torch.where(after > 1e-6 * before, a / after.clamp(min=1e-30), torch.zeros_like(a))
    return u


def leap(x, w, qmax, r):
    """LeapQuant with the least-squares column scale. Returns the stored matrix and W for the next warm start."""
    cold = w is None
    random = torch.Generator(device=x.device).manual_seed(7)
    signs = torch.randint(0, 2, (x.shape[-1], r), device=x.device, generator=random) * 2.0 - 1
    w = signs.expand(*x.shape[:-2], -1, -1) if cold else torch.where(w.abs().amax(-2, keepdim=True) > 0, w, signs)
    for _ in range(4 if cold else 2):
        u = orthonormal(x @ w)
        w = x.transpose(-1, -2) @ u
    u, w = u.half().float(), w.clamp(-65504, 65504).half().float()
    low = u @ w.transpose(-1, -2)
    y = x - low
    c = y.abs().mean(-1, keepdim=True)
    top = c.amax(-2, keepdim=True)
    c = torch.where(top > 0, torch.maximum(c, 1e-6 * top), torch.ones_like(c)).sqrt()
    y = y / c
    s = y.abs().amax(-2, keepdim=True) / qmax
    s = torch.where(s > 0, s, torch.ones_like(s))
    q = (y / s).round().clamp(-qmax, qmax)
    weight = (c / c.amax(-2, keepdim=True))**2
    under = (q * q * weight).sum(-2, keepdim=True)
    fit = (y * q * weight).sum(-2, keepdim=True) / under.clamp(min=1e-30)
    s = torch.where((under > 0) & (fit > 0), fit, s)
    return low + c * (q * s), w


class Format:
    """How states are stored: a rounding, and the tokens between two of them. Modes: 1 BF16, 2 integers in groups of 32
    with an FP32 scale, 3 with a BF16 scale, 4 FP16, 5 LeapQuant of some rank."""

    def __init__(self, window, mode=0, qmax=0, rank=0):
        self.window, self.mode, self.qmax, self.rank = window, mode, qmax, rank

    def store(self, x, w):
        if self.rank:
            return leap(x, w, self.qmax, self.rank)
        if self.mode == 1:
            return x.bfloat16().float(), None
        if self.mode == 4:
            return x.half().float(), None
        return (round_int(x, self.qmax, self.mode == 3) if self.mode else x), None


FORMATS = {
    "fp32": Format(1), "bf16": Format(1, 1), "bf16-w": Format(16, 1), "fp16": Format(1, 4),
    "int8": Format(1, 2, 127), "int8-w": Format(16, 2, 127), "int8-bf16scale": Format(1, 3, 127),
    "int4": Format(1, 2, 7), "int4-w": Format(16, 2, 7),
    "leap8": Format(16, 5, 127, 4), "leap4": Format(16, 5, 7, 8),
}

# ---- the recurrence ----


def scan_torch(S, q, k, v, g, beta, round_each=lambda x: x):
    """S [B,H,K,V], updated in place; q, k [B,T,H,K]; v [B,T,H,V]; g [B,T,H] or [B,T,H,K]; beta [B,T,H]."""
    out = torch.empty(*q.shape[:3], v.shape[-1], device=q.device)
    for t in range(q.shape[1]):
        decay = g[:, t].exp()
        S.mul_(decay[..., None] if g.dim() == 4 else decay[..., None, None])
        d = (v[:, t] - torch.einsum("bhkv,bhk->bhv", S, k[:, t])) * beta[:, t, :, None]
        S.add_(k[:, t, :, :, None] * d[:, :, None])
        out[:, t] = torch.einsum("bhkv,bhk->bhv", S, q[:, t])
        S.copy_(round_each(S))
    return out


if triton:

    @triton.jit
    def scan_kernel(S, Q, K, V, G, BETA, O, H, T, KD: tl.constexpr, VD: tl.constexpr,
                    BV: tl.constexpr, VECTOR: tl.constexpr, MODE: tl.constexpr, QMAX: tl.constexpr):
        # One program: 32 value columns of one head, which is one group of a row.
        bh = tl.program_id(0).to(tl.int64)
        b, h = bh // H, bh % H
        i, j = tl.arange(0, KD), tl.program_id(1) * BV + tl.arange(0, BV)
        at = S + bh * KD * VD + i[:, None] * VD + j[None, :]
        s = tl.load(at)
        for t in range(T):
            row = (b * T + t) * H + h
            k, q = tl.load(K + row * KD + i), tl.load(Q + row * KD + i)
            v, beta = tl.load(V + row * VD + j), tl.load(BETA + row)
            if VECTOR:
                s = s * tl.exp(tl.load(G + row * KD + i))[:, None]
            else:
                s = s * tl.exp(tl.load(G + row))
            d = (v - tl.sum(s * k[:, None], 0)) * beta
            s = s + k[:, None] * d[None, :]
            tl.store(O + row * VD + j, tl.sum(s * q[:, None], 0))
            if MODE == 1:
                s = s.to(tl.bfloat16).to(tl.float32)
            if MODE == 4:
                s = s.to(tl.float16).to(tl.float32)
            if MODE == 2 or MODE == 3:
                scale = tl.maximum(tl.max(tl.abs(s), 1), 1e-30) / QMAX
                if MODE == 3:
                    scale = scale.to(tl.bfloat16).to(tl.float32)
                code = tl.minimum(tl.maximum(s / scale[:, None], -QMAX), QMAX)
                code = (code + 12582912.0) - 12582912.0  # to the nearest integer, ties to even
                s = code * scale[:, None]
        tl.store(at, s)


def scan(S, q, k, v, g, beta, mode=0, qmax=0):
    if not S.is_cuda:
        form = Format(1, mode, qmax)
        return scan_torch(S, q, k, v, g, beta, lambda x: form.store(x, None)[0])
    q, k, v, g, beta = (x.float().contiguous() for x in (q, k, v, g, beta))
    batch, steps, heads, keys = q.shape
    out = torch.empty_like(v)
    scan_kernel[(batch * heads, v.shape[-1] // 32)](S, q, k, v, g, beta, out, heads, steps, keys, v.shape[-1], 32,
                                                      g.dim() == 4, mode, float(qmax), num_warps=4)
    return out


# ---- memories of a batch ----


class DeltaMemory:
    def __init__(self, batch, state):
        self.batch, self.state, self.inputs = batch, state, {}

    def past(self, i, line):
        """The last 3 inputs of convolution i; afterwards those before the end of the valid tokens of `line`."""
        width = 3
        past = self.inputs.get(i)
        if past is None:
            past = line.new_zeros(line.shape[0], line.shape[2], width)
        whole = torch.cat([past, line.transpose(1, 2)], -1)
        at = self.batch.valid[:, None, None] + torch.arange(width, device=line.device)
        self.inputs[i] = whole.gather(2, at.expand(-1, line.shape[2], -1))
        return past


class KVMemory:
    def __init__(self, batch):
        self.batch, self.k, self.v = batch, None, None

    def positions(self, steps):
        return self.batch.position[:, None] + torch.arange(steps, device=self.batch.position.device)

    def append(self, k, v):
        """Tokens past the valid ones are written too; the next tokens overwrite them before anything reads them."""
        if self.k is None:
            self.k = k.new_zeros(*k.shape[:2], self.batch.room, k.shape[-1])
            self.v = v.new_zeros(*v.shape[:2], self.batch.room, v.shape[-1])
        at = self.positions(k.shape[2])
        for store, new in ((self.k, k), (self.v, v)):
            store.scatter_(2, at[:, None, :, None].expand(-1, new.shape[1], -1, new.shape[3]), new)
        mask = torch.arange(self.batch.room, device=k.device) <= at[:, None, :, None]
        return self.k, self.v, mask


class Batch:
    """The memory of a batch of sequences: all states in one tensor [layers, batch, heads, key, value]. `decoded`:
    prompt tokens round the states as answer tokens do."""

    def __init__(self, model, rows, room, form, decoded=False):
        c, device = model.config, model.model.norm.weight.device
        delta = [i for i in range(c["layers"]) if i not in c["full"]]
        self.model, self.form, self.room, self.w = model, form, room, None
        self.decoded, self.each = decoded, decoded
        self.position = torch.zeros(rows, dtype=torch.long, device=device)
        self.valid = torch.zeros(rows, dtype=torch.long, device=device)
        self.states = torch.zeros(len(delta), rows, c["heads"], c["key_dim"], c["value_dim"], device=device)
        self.memories = [DeltaMemory(self, self.states[delta.index(i)]) if i in delta else KVMemory(self)
                         for i in range(c["layers"])]

    def scan(self, memory, q, k, v, g, beta):
        """Formats that round at every token do it in the kernel, but for prompts that are not as if decoded."""
        form = self.form if self.each and self.form.window == 1 else FORMATS["fp32"]
        live = torch.arange(q.shape[1], device=q.device) < self.valid[:, None]
        g = torch.where(live[:, :, None, None] if g.dim() == 4 else live[:, :, None], g, 0.0)
        return scan(memory.state, q, k, v, g, torch.where(live[:, :, None], beta, 0.0), form.mode, form.qmax)

    def fold(self, rows=None):
        """Round the states (of some rows)."""
        if not self.form.mode:
            return
        new, w = self.form.store(self.states, self.w)
        if rows is None:
            self.states.copy_(new)
        else:
            pick = rows[None, :, None, None, None]
            self.states.copy_(torch.where(pick, new, self.states))
            if w is not None and self.w is not None:
                w = torch.where(pick, w, self.w)
        self.w = w

    def forward(self, ids, valid):
        """Hidden states of ids [B,T], of which valid [B] count."""
        self.valid = valid
        h = self.model(ids, self.memories, self.scan)
        self.position = self.position + valid
        return h

    def piece(self):
        return self.form.window if self.each and self.form.window > 1 else PIECE

    def prefill(self, ids, lengths):
        """Right-padded prompts; returns the logits after the last token of each."""
        last, piece = torch.zeros(ids.shape[0], self.model.config["hidden"], device=ids.device), self.piece()
        for at in range(0, ids.shape[1], piece):
            valid = (lengths - at).clamp(0, min(piece, ids.shape[1] - at))
            h = self.forward(ids[:, at:at + piece], valid)
            ends = (lengths > at) & (lengths <= at + piece)
            last = torch.where(ends[:, None], h.gather(1, (valid - 1).clamp(min=0)[:, None, None].expand(
                -1, 1, h.shape[2]))[:, 0], last)
            self.fold(valid > 0)
        self.each = True
        return self.model.logits(last)

    def follow(self, ids):
        """The likeliest token after each of ids [B,T], which are answer tokens."""
        out, piece = [], self.piece()
        for at in range(0, ids.shape[1], piece):
            part = ids[:, at:at + piece]
            h = self.forward(part, torch.full_like(ids[:, 0], part.shape[1]))
            out.append(self.model.logits(h).argmax(-1))
            if self.form.window > 1 and part.shape[1] == piece:
                self.fold()
        return torch.cat(out, 1)


def padded(lists, multiple, device):
    width = (max(map(len, lists)) + multiple - 1) // multiple * multiple
    ids = torch.zeros(len(lists), width, dtype=torch.long)
    for i, x in enumerate(lists):
        ids[i, :len(x)] = torch.tensor(x)
    return ids.to(device)


@torch.no_grad()
def right_until(model, prompts, answers, form, decoded=False):
    """How many tokens of each answer greedy decoding gets right before its first error. Until then it sees the answer,
    so one pass over the answer tells: no token has to wait for the one before."""
    device = model.model.norm.weight.device
    ids, want = padded(prompts, PIECE, device), padded(answers, 1, device)
    batch = Batch(model, len(prompts), ids.shape[1] + want.shape[1], form, decoded)
    first = batch.prefill(ids, torch.tensor([len(p) for p in prompts], device=device)).argmax(-1)
    best = torch.cat([first[:, None], batch.follow(want[:, :-1])], 1)
    wrong = (best != want).tolist()
    return [next((i for i, x in enumerate(row[:len(a)]) if x), len(a)) for row, a in zip(wrong, answers)]

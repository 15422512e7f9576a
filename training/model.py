"""The architectures of the small models, with Hugging Face's tensor names, in one page of PyTorch.

"gdn"  Qwen3.5 text: Gated DeltaNet layers and gated full attention with partial RoPE.
"kda"  Kimi-Linear: Kimi Delta Attention layers and MLA without position encoding, dense MLPs.

forward() runs whole sequences: for training on CUDA through fla's chunk kernels, on a CPU through chunks.py in FP32,
and where `scan` is given through that function, which is the token-by-token recurrence in FP32 (decode.py). `fresh`
marks tokens before which the states are forgotten: rows of training data hold many documents, and slow heads could not
forget the last one. The names and shapes in PRESETS are those of the config.json that export.py writes.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

import chunks

COMMON = dict(vocab=8192, hidden=192, layers=8, eps=1e-6, key_dim=128, value_dim=128, conv=4)
PRESETS = {
    # 3 delta layers to 1 attention layer
    "tiny-gdn": dict(COMMON, arch="gdn", full=[3, 7], inter=256, key_heads=2, heads=4, q_heads=4, kv_heads=2,
                     head_dim=128, rotary=32, theta=10000.0, decay="usual"),
    "tiny-kda": dict(COMMON, arch="kda", full=[3, 7], inter=288, key_heads=3, heads=3, q_heads=4, nope=64, rope=32,
                     v_dim=64, rank=128, decay="usual"),
    # no attention layer, heads that start with decays from 1e-1 down to 1e-5 a token
    "tiny-gdn-pure": dict(COMMON, arch="gdn", full=[], inter=256, key_heads=2, heads=4, q_heads=4, kv_heads=2,
                          head_dim=128, rotary=32, theta=10000.0, decay="slow", reset=True),
}


def linear(inputs, outputs):
    m = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(m.weight, std=0.02)
    return m


class RMSNorm(nn.Module):
    """Qwen3.5 keeps the weight minus one (`shifted`), except in the norm of the delta rule's output."""

    def __init__(self, size, eps, shifted):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size) if shifted else torch.ones(size))
        self.eps, self.shifted = eps, shifted

    def forward(self, x):
        w = self.weight + 1 if self.shifted else self.weight
        return F.rms_norm(x, (x.shape[-1],), w.to(x.dtype), self.eps)


class Conv(nn.Module):
    """Causal depthwise convolution over the last 4 tokens, then SiLU."""

    def __init__(self, channels, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, width).uniform_(-0.5, 0.5))

    def forward(self, x, past=None):
        """x [B,T,C]; past [B,C,width-1]: inputs before x (None: zeros). With autograd on CUDA: fla's kernel."""
        if past is None and x.is_cuda and torch.is_grad_enabled():
            from fla.modules.causal_conv1d import causal_conv1d
            return causal_conv1d(x.contiguous(), self.weight.squeeze(1).to(x.dtype), None, activation="silu")[0]
        width, steps = self.weight.shape[-1], x.shape[1]
        past = x.new_zeros(x.shape[0], x.shape[2], width - 1) if past is None else past.to(x.dtype)
        line = torch.cat([past.transpose(1, 2), x], 1)
        w = self.weight.squeeze(1).to(x.dtype)
        return F.silu(sum(line[:, i:i + steps] * w[:, i] for i in range(width)))


def unit(x):
    x = x.float()
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def chunk_delta(q, k, v, g, beta):
    """The delta rule over whole sequences for training. Scalar decays (GDN) are broadcast over the key channels: fla's
    backward of the gated delta rule refuses Triton 3.4 to 3.7.0 on Hopper, its KDA backward is sound."""
    if g.dim() == 3:
        g = g[..., None].expand(*g.shape, k.shape[-1]).contiguous()
    if not q.is_cuda:
        return chunks.delta_rule(unit(q) * k.shape[-1]**-0.5, unit(k), v.float(), g, beta)
    from fla.ops.kda import chunk_kda
    return chunk_kda(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)[0]


def dt_init(count, low=1e-3, high=1e-1):
    """softplus^-1 of values spread evenly over the logarithms from low to high."""
    dt = torch.exp(torch.rand(count) * math.log(high / low) + math.log(low))
    return dt + torch.log(-torch.expm1(-dt))


class Delta(nn.Module):
    """What GDN and KDA share: `mix` turns convolved q, k, v, log-decays and write strengths into outputs."""

    def mix(self, x, lines, gates, memory, scan, fresh):
        c = self.config
        batch, steps = x.shape[:2]
        q, k, v = (lines[0].view(batch, steps, -1, c["key_dim"]), lines[1].view(batch, steps, -1, c["key_dim"]),
                   lines[2].view(batch, steps, -1, c["value_dim"]))
        repeat = c["heads"] // c["key_heads"]
        if repeat > 1:
            q, k = q.repeat_interleave(repeat, 2), k.repeat_interleave(repeat, 2)
        g, beta = gates
        if scan is None:
            if fresh is not None:  # e^-12 of a state is left
                g = g - 12.0 * (fresh[..., None] if g.dim() == 3 else fresh[..., None, None])
            return chunk_delta(q, k, v, g, beta)
        return scan(memory, unit(q) * c["key_dim"]**-0.5, unit(k), v.float(), g, beta)


class GDN(Delta):
    def __init__(self, c):
        super().__init__()
        self.config = c
        keys, values = c["key_heads"] * c["key_dim"], c["heads"] * c["value_dim"]
        self.split = [keys, keys, values]
        self.in_proj_qkv, self.in_proj_z = linear(c["hidden"], 2 * keys + values), linear(c["hidden"], values)
        self.in_proj_b, self.in_proj_a = linear(c["hidden"], c["heads"]), linear(c["hidden"], c["heads"])
        self.conv1d = Conv(2 * keys + values, c["conv"])
        if c["decay"] == "slow":
            dt = torch.tensor([10.0**-(1 + 4 * i / (c["heads"] - 1)) for i in range(c["heads"])])
            self.dt_bias, self.A_log = nn.Parameter(torch.log(torch.expm1(dt))), nn.Parameter(torch.zeros(c["heads"]))
        else:
            self.dt_bias = nn.Parameter(dt_init(c["heads"]))
            self.A_log = nn.Parameter(torch.log(torch.empty(c["heads"]).uniform_(1, 16)))
        self.norm = RMSNorm(c["value_dim"], c["eps"], False)
        self.out_proj = linear(values, c["hidden"])

    def gates(self, x):
        a = self.in_proj_a(x).float()
        return -self.A_log.float().exp() * F.softplus(a + self.dt_bias), self.in_proj_b(x).float().sigmoid()

    def forward(self, x, memory=None, scan=None, fresh=None):
        line = self.in_proj_qkv(x)
        out = self.conv1d(line, None if memory is None else memory.past(0, line))
        o = self.mix(x, out.split(self.split, -1), self.gates(x), memory, scan, fresh)
        z = self.in_proj_z(x).view(o.shape)
        return self.out_proj((self.norm(o.to(x.dtype)) * F.silu(z)).flatten(2))


class KDA(Delta):
    def __init__(self, c):
        super().__init__()
        self.config = c
        d, keys, values = c["hidden"], c["heads"] * c["key_dim"], c["heads"] * c["value_dim"]
        self.q_proj, self.k_proj, self.v_proj = linear(d, keys), linear(d, keys), linear(d, values)
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (Conv(n, c["conv"]) for n in (keys, keys, values))
        self.f_a_proj, self.f_b_proj = linear(d, c["value_dim"]), linear(c["value_dim"], keys)
        self.b_proj = linear(d, c["heads"])
        self.A_log = nn.Parameter(torch.log(torch.empty(1, 1, c["heads"], 1).uniform_(1, 16)))
        self.dt_bias = nn.Parameter(dt_init(keys))
        self.g_a_proj, self.g_b_proj = linear(d, c["value_dim"]), linear(c["value_dim"], values)
        self.o_norm = RMSNorm(c["value_dim"], c["eps"], False)
        self.o_proj = linear(values, d)

    def gates(self, x):
        a = F.softplus(self.f_b_proj(self.f_a_proj(x)).float() + self.dt_bias)
        a = a.view(*x.shape[:2], self.config["heads"], self.config["key_dim"])
        return -self.A_log.float().exp() * a, self.b_proj(x).float().sigmoid()

    def forward(self, x, memory=None, scan=None, fresh=None):
        lines = [self.q_proj(x), self.k_proj(x), self.v_proj(x)]
        convs = [self.q_conv1d, self.k_conv1d, self.v_conv1d]
        out = [conv(line, None if memory is None else memory.past(i, line))
               for i, (conv, line) in enumerate(zip(convs, lines))]
        o = self.mix(x, out, self.gates(x), memory, scan, fresh)
        gate = self.g_b_proj(self.g_a_proj(x)).view(o.shape)
        return self.o_proj((self.o_norm(o.to(x.dtype)) * gate.sigmoid()).flatten(2))


def rope(x, at, rotary, theta):
    """Rotate the first `rotary` dimensions of x [B,H,T,D]; at [B,T]."""
    inv = 1.0 / (theta**(torch.arange(0, rotary, 2, device=x.device).float() / rotary))
    angle = (at.float()[:, None, :, None] * inv).repeat(1, 1, 1, 2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    turn, keep = x[..., :rotary], x[..., rotary:]
    half = rotary // 2
    return torch.cat([turn * cos + torch.cat([-turn[..., half:], turn[..., :half]], -1) * sin, keep], -1)


def attend(q, k, v, memory, scale):
    """Causal attention; with a memory, over all tokens of it (k and v are appended first)."""
    if memory is None:
        width = v.shape[-1]
        v = F.pad(v, (0, q.shape[-1] - width))  # one head size for q, k and v: the fast kernels ask for it
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)[..., :width]
    k, v, mask = memory.append(k, v)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config = c
        d, heads, kv, size = c["hidden"], c["q_heads"], c["kv_heads"], c["head_dim"]
        self.q_proj, self.k_proj, self.v_proj = linear(d, heads * size * 2), linear(d, kv * size), linear(d, kv * size)
        self.o_proj = linear(heads * size, d)
        self.q_norm, self.k_norm = RMSNorm(size, c["eps"], True), RMSNorm(size, c["eps"], True)

    def forward(self, x, memory=None, scan=None, fresh=None):
        c, (batch, steps) = self.config, x.shape[:2]
        q, gate = self.q_proj(x).view(batch, steps, c["q_heads"], 2 * c["head_dim"]).chunk(2, -1)
        at = torch.arange(steps, device=x.device)[None] if memory is None else memory.positions(steps)
        k = self.k_norm(self.k_proj(x).view(batch, steps, c["kv_heads"], c["head_dim"])).transpose(1, 2)
        v = self.v_proj(x).view(batch, steps, c["kv_heads"], c["head_dim"]).transpose(1, 2)
        q = rope(self.q_norm(q).transpose(1, 2), at, c["rotary"], c["theta"])
        k = rope(k, at, c["rotary"], c["theta"])
        repeat = c["q_heads"] // c["kv_heads"]
        o = attend(q, k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1), memory, c["head_dim"]**-0.5)
        return self.o_proj(o.transpose(1, 2).flatten(2) * gate.flatten(2).sigmoid())


class MLA(nn.Module):
    """Multi-head latent attention without RoPE: the `rope` part of a key is shared by the heads and not rotated."""

    def __init__(self, c):
        super().__init__()
        self.config = c
        d, heads = c["hidden"], c["q_heads"]
        self.q_proj = linear(d, heads * (c["nope"] + c["rope"]))
        self.kv_a_proj_with_mqa = linear(d, c["rank"] + c["rope"])
        self.kv_a_layernorm = RMSNorm(c["rank"], c["eps"], False)
        self.kv_b_proj = linear(c["rank"], heads * (c["nope"] + c["v_dim"]))
        self.o_proj = linear(heads * c["v_dim"], d)

    def forward(self, x, memory=None, scan=None, fresh=None):
        c, (batch, steps) = self.config, x.shape[:2]
        size = c["nope"] + c["rope"]
        q = self.q_proj(x).view(batch, steps, c["q_heads"], size).transpose(1, 2)
        latent, shared = self.kv_a_proj_with_mqa(x).split([c["rank"], c["rope"]], -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(batch, steps, c["q_heads"], c["nope"] + c["v_dim"])
        own, v = kv.transpose(1, 2).split([c["nope"], c["v_dim"]], -1)
        k = torch.cat([own, shared[:, None].expand(batch, c["q_heads"], steps, c["rope"])], -1)
        return self.o_proj(attend(q, k, v, memory, size**-0.5).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj, self.up_proj = linear(c["hidden"], c["inter"]), linear(c["hidden"], c["inter"])
        self.down_proj = linear(c["inter"], c["hidden"])

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, c, i):
        super().__init__()
        shifted = c["arch"] == "gdn"
        self.input_layernorm = RMSNorm(c["hidden"], c["eps"], shifted)
        self.post_attention_layernorm = RMSNorm(c["hidden"], c["eps"], shifted)
        self.mlp = MLP(c)
        self.full = i in c["full"]
        if c["arch"] == "kda":
            self.self_attn = MLA(c) if self.full else KDA(c)
        elif self.full:
            self.self_attn = Attention(c)
        else:
            self.linear_attn = GDN(c)

    @property
    def mixer(self):
        return self.linear_attn if hasattr(self, "linear_attn") else self.self_attn

    def forward(self, x, memory=None, scan=None, fresh=None):
        x = x + self.mixer(self.input_layernorm(x), memory, scan, fresh)
        return x + self.mlp(self.post_attention_layernorm(x))


class LM(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = c = config
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c["vocab"], c["hidden"])
        nn.init.normal_(self.model.embed_tokens.weight, std=0.02)
        self.model.layers = nn.ModuleList([Block(c, i) for i in range(c["layers"])])
        self.model.norm = RMSNorm(c["hidden"], c["eps"], c["arch"] == "gdn")
        for name, p in self.model.layers.named_parameters():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * c["layers"]))

    def forward(self, ids, memories=None, scan=None, fresh=None):
        """Hidden states after the last norm. `memories`: one per layer (decode.py)."""
        x = self.model.embed_tokens(ids)
        for i, block in enumerate(self.model.layers):
            x = block(x, None if memories is None else memories[i], scan, fresh)
        return self.model.norm(x)

    def logits(self, h):
        return F.linear(h, self.model.embed_tokens.weight.to(h.dtype))

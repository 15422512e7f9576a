"""Golden answers of tiny-kda and of a small random Kimi-Linear model, for tests/test_kimi.c.

usage: make_kda_golden.py prompts MODEL_DIR OUT_DIR    writes the prompts' token ids to OUT_DIR/kda_golden.json (needs tokenizers)
       make_kda_golden.py answers MODEL_DIR OUT_DIR    adds answers and logits to it, and writes OUT_DIR/random_kimi (needs torch)

MODEL_DIR is tiny-kda; the eval problems are read from EVAL_DIR, by default the folder models/eval of this repository. The model is the
trainer's step: one token at a time through convolutions, KDA and expanded MLA, from an empty state, FP32 weights widened from BF16, no
autocast, no TF32. Runs on the GPU where torch finds one, else on the CPU (slow: OMP_NUM_THREADS=1 helps). The committed
files are from an H200 with torch 2.11; a CPU with torch 2.15 gave the same answers and logits within 2e-5 (1 + |logit|).
"""
import json, math, os, struct, sys

mode, folder, out = sys.argv[1], sys.argv[2], sys.argv[3]
here = os.path.dirname(os.path.abspath(__file__))
golden_file = f"{out}/kda_golden.json"
ANSWER, LOGITS, TOP = 64, 64, 8
LATENT_EPS = 1e-6  # of kv_a_layernorm, whatever rms_norm_eps is


# ---------------------------------------------------------------- prompts
def chat(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def problems(name, n):
    path = os.environ.get("EVAL_DIR", f"{here}/../../models/eval")
    return [chat(json.loads(line)["messages"][0]["content"]) for line in open(f"{path}/{name}.jsonl")][:n]


def prompts():
    apples = " ".join(f"{i} apples," for i in range(140))
    return ["A", "The river was", "It was a dark and stormy night, and",
            "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse,",
            "def main(argv):\n    ", "import os\nimport sys\n\n\nclass Reader:\n    def __init__(self, path):\n        self.path = path\n\n    def ",
            "Fußgänger überqueren die Straße. 你好，世界！ Привет, мир! naïve café 🍎🚀👩‍👩‍👧‍👦 مرحبا", apples,
            chat("Reverse: river stone apple cloud"), chat("Copy: " + "river stone apple cloud ember falcon " * 4)] \
        + problems("registers-32", 3) + problems("add-16", 1) + problems("recall-48", 1) + problems("overwrite-12x80", 1)


def write_prompts():
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    ids = [tokenizer.encode(p).ids for p in prompts()]
    print(len(ids), "prompts of", [len(i) for i in ids], "tokens")
    json.dump({"model": [{"ids": i} for i in ids]}, open(golden_file, "w"))


if mode == "prompts":
    write_prompts()
    sys.exit()

import torch
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.set_grad_enabled(False)
device = "cuda" if torch.cuda.is_available() else "cpu"
TYPES = {"BF16": (torch.bfloat16, 2), "F32": (torch.float32, 4)}


# ---------------------------------------------------------------- safetensors
def read_tensors(path):
    tensors = {}
    for name in sorted(os.listdir(path)):
        if not name.endswith(".safetensors"): continue
        data = open(f"{path}/{name}", "rb").read()
        begin = 8 + struct.unpack("<Q", data[:8])[0]
        for key, t in json.loads(data[8:begin]).items():
            if key == "__metadata__": continue
            raw = bytearray(data[begin + t["data_offsets"][0]:begin + t["data_offsets"][1]])
            tensors[key] = torch.frombuffer(raw, dtype=TYPES[t["dtype"]][0]).reshape(t["shape"]).float().to(device)
    return tensors


def write_tensors(path, tensors):
    header, data = {}, b""
    for key, t in sorted(tensors.items()):
        raw = t.contiguous().view(torch.uint8).reshape(-1).numpy().tobytes()
        header[key] = {"dtype": "F32" if t.dtype == torch.float32 else "BF16", "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)


# ---------------------------------------------------------------- the model, one token at a time
def rms(x, w, eps):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * w


def l2(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def silu(x):
    return x * torch.sigmoid(x)


class Model:
    def __init__(self, path):
        self.c = c = json.load(open(f"{path}/config.json"))
        self.w = read_tensors(path)
        self.eps = c["rms_norm_eps"]
        self.kda = c["linear_attn_config"]
        self.is_mla = [i + 1 in self.kda["full_attn_layers"] for i in range(c["num_hidden_layers"])]

    def empty(self):
        return [{} for _ in self.is_mla]

    def t(self, layer, name):
        return self.w[f"model.layers.{layer}.{name}"]

    def conv(self, layer, which, x, state):
        taps = self.t(layer, f"self_attn.{which}_conv1d.weight").squeeze(1)
        history = state.get(which)
        if history is None: history = torch.zeros(taps.shape[0], taps.shape[1] - 1, device=x.device)
        window = torch.cat([history, x[:, None]], -1)
        state[which] = window[:, 1:]
        return silu((window * taps).sum(-1))

    def kda_step(self, layer, x, state):
        heads, dim = self.kda["num_heads"], self.kda["head_dim"]
        p = lambda name: self.t(layer, f"self_attn.{name}_proj.weight")
        q, k, v = (self.conv(layer, n, p(n) @ x, state).view(heads, dim) for n in "qkv")
        g = (p("f_b") @ (p("f_a") @ x) + self.t(layer, "self_attn.dt_bias")).view(heads, dim)
        g = -self.t(layer, "self_attn.A_log").exp().view(heads, 1) * torch.nn.functional.softplus(g)
        beta = torch.sigmoid(p("b") @ x)
        q, k = l2(q) * dim ** -0.5, l2(k)
        S = state.get("S")
        if S is None: S = torch.zeros(heads, dim, dim, device=x.device)
        S = S * g.exp()[..., None]
        delta = (v - (S * k[..., None]).sum(-2)) * beta[:, None]
        S = S + k[..., None] * delta[:, None, :]
        state["S"] = S
        o = (S * q[..., None]).sum(-2)
        o = rms(o, self.t(layer, "self_attn.o_norm.weight"), self.eps) * torch.sigmoid(p("g_b") @ (p("g_a") @ x)).view(heads, dim)
        return p("o") @ o.reshape(-1)

    def mla_step(self, layer, x, state):
        c = self.c
        heads, nope, rope, vdim, rank = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
        q = (self.t(layer, "self_attn.q_proj.weight") @ x).view(heads, nope + rope)
        latent, rest = (self.t(layer, "self_attn.kv_a_proj_with_mqa.weight") @ x).split([rank, rope])
        latent = rms(latent, self.t(layer, "self_attn.kv_a_layernorm.weight"), LATENT_EPS)
        kv = (self.t(layer, "self_attn.kv_b_proj.weight") @ latent).view(heads, nope + vdim)
        k = torch.cat([kv[:, :nope], rest[None].expand(heads, rope)], -1)[:, None]
        v = kv[:, None, nope:]
        state["k"] = torch.cat([state["k"], k], 1) if "k" in state else k
        state["v"] = torch.cat([state["v"], v], 1) if "v" in state else v
        p = torch.softmax((state["k"] * q[:, None]).sum(-1) * (nope + rope) ** -0.5, -1)
        return self.t(layer, "self_attn.o_proj.weight") @ (p[..., None] * state["v"]).sum(1).reshape(-1)

    def step(self, token, states):
        x = self.w["model.embed_tokens.weight"][token]
        for i, mla in enumerate(self.is_mla):
            h = rms(x, self.t(i, "input_layernorm.weight"), self.eps)
            x = x + (self.mla_step if mla else self.kda_step)(i, h, states[i])
            h = rms(x, self.t(i, "post_attention_layernorm.weight"), self.eps)
            up = silu(self.t(i, "mlp.gate_proj.weight") @ h) * (self.t(i, "mlp.up_proj.weight") @ h)
            x = x + self.t(i, "mlp.down_proj.weight") @ up
        head = self.w.get("lm_head.weight", self.w["model.embed_tokens.weight"])
        return head @ rms(x, self.w["model.norm.weight"], self.eps)


def golden(model, ids, new):
    states, answer, margin = model.empty(), [], math.inf
    for token in ids: logits = model.step(token, states)
    best = torch.topk(logits, TOP)
    result = {"ids": ids, "logits": [float(f"{x:.7g}") for x in logits[:LOGITS].tolist()],
              "top": [[i, float(f"{x:.7g}")] for i, x in zip(best.indices.tolist(), best.values.tolist())]}
    for t in range(new):
        two = torch.topk(logits, 2)
        margin = min(margin, float(two.values[0] - two.values[1]))
        answer.append(int(two.indices[0]))
        if t + 1 < new: logits = model.step(answer[-1], states)
    result["answer"], result["margin"] = answer, float(f"{margin:.4g}")
    return result


# ---------------------------------------------------------------- a random model whose dimensions all differ
def random_model(path):
    os.makedirs(path, exist_ok=True)
    config = {"model_type": "kimi_linear", "vocab_size": 256, "hidden_size": 24, "intermediate_size": 28, "num_hidden_layers": 4,
              "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 99, "hidden_act": "silu", "rms_norm_eps": 1e-5,
              "tie_word_embeddings": False, "model_max_length": 4096, "kv_lora_rank": 48, "q_lora_rank": None, "qk_nope_head_dim": 20,
              "qk_rope_head_dim": 16, "v_head_dim": 12, "mla_use_nope": True, "num_experts": None, "first_k_dense_replace": 4, "eos_token_id": 0,
              "linear_attn_config": {"kda_layers": [1, 3], "full_attn_layers": [2, 4], "num_heads": 3, "head_dim": 16, "short_conv_kernel_size": 3}}
    json.dump(config, open(f"{path}/config.json", "w"), indent=1)
    generator = torch.Generator().manual_seed(11)
    noise = lambda *shape: torch.randn(*shape, generator=generator)
    tensors = {}

    def add(name, *shape, scale=None):
        tensors[name] = (noise(*shape) * (scale or shape[-1] ** -0.5 * 1.3)).bfloat16()

    def norm(name, n):
        tensors[name] = (1 + 0.2 * noise(n)).bfloat16()
    D, F, V = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    k, H = config["linear_attn_config"], config["num_attention_heads"]
    wide, dim, rank = k["num_heads"] * k["head_dim"], k["head_dim"], config["kv_lora_rank"]
    nope, rope, vdim = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    add("model.embed_tokens.weight", V, D, scale=0.5)
    add("lm_head.weight", V, D, scale=0.5)
    norm("model.norm.weight", D)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        norm(p + "input_layernorm.weight", D)
        norm(p + "post_attention_layernorm.weight", D)
        add(p + "mlp.gate_proj.weight", F, D)
        add(p + "mlp.up_proj.weight", F, D)
        add(p + "mlp.down_proj.weight", D, F)
        p += "self_attn."
        if i + 1 in k["full_attn_layers"]:
            add(p + "q_proj.weight", H * (nope + rope), D)
            add(p + "kv_a_proj_with_mqa.weight", rank + rope, D)
            tensors[p + "kv_a_proj_with_mqa.weight"][:rank] *= 2 ** -9  # so small that the epsilon of its norm shows
            norm(p + "kv_a_layernorm.weight", rank)
            add(p + "kv_b_proj.weight", H * (nope + vdim), rank)
            add(p + "o_proj.weight", D, H * vdim)
            continue
        for n in "qkv":
            add(p + n + "_proj.weight", wide, D)
            add(p + n + "_conv1d.weight", wide, 1, k["short_conv_kernel_size"], scale=0.5)
        for n in "fg":
            add(p + n + "_a_proj.weight", dim, D)
            add(p + n + "_b_proj.weight", wide, dim)
        add(p + "b_proj.weight", k["num_heads"], D)
        add(p + "o_proj.weight", D, wide)
        norm(p + "o_norm.weight", dim)
        A = torch.linspace(-3, 1.5, k["num_heads"]) + 0.1 * i
        tensors[p + "A_log"] = A if i == 2 else A.view(1, 1, -1, 1)  # both shapes are seen in files
        tensors[p + "dt_bias"] = noise(wide) - 1
    write_tensors(f"{path}/model.safetensors", tensors)


def byte_tokenizer(path):
    visible = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    letters = {b: chr(b) for b in visible}
    for b in range(256):
        if b not in letters: letters[b] = chr(256 + len(letters) - len(visible))
    vocab = {letters[b]: b for b in range(256)}
    json.dump({"version": "1.0", "added_tokens": [], "normalizer": None,
               "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
               "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocab, "merges": []}}, open(f"{path}/tokenizer.json", "w"))


model = Model(folder)
result = {"torch": torch.__version__, "device": torch.cuda.get_device_name() if device == "cuda" else "cpu"}
result["model"] = [golden(model, p["ids"], ANSWER) for p in json.load(open(golden_file))["model"]]
random_model(f"{out}/random_kimi")
byte_tokenizer(f"{out}/random_kimi")
generator = torch.Generator().manual_seed(3)
random = Model(f"{out}/random_kimi")
result["random"] = [golden(random, torch.randint(1, 256, (n,), generator=generator).tolist(), 24) for n in (1, 2, 3, 5, 63, 64, 65, 200, 257, 300)]
json.dump(result, open(golden_file, "w"))
for kind in ("model", "random"):
    print(kind, [(len(p["ids"]), p["margin"]) for p in result[kind]])

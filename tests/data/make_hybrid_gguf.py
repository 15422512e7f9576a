#!/usr/bin/env python3
"""Writes hybrid_*.gguf and hybrid_golden.json beside itself: small random models with recurrent layers as GGUF files, and what their logits are.

    python3 tests/data/make_hybrid_gguf.py LLAMA_CPP [NAME ...]

needs torch, transformers, tokenizers, safetensors and the gguf package. LLAMA_CPP holds llama.cpp's own converter (vendor/llama.cpp in the source
package of llama-cpp-python), which writes every file, from

    qwen35      hybrid_qwen35/: two GDN layers with three value heads a key head, an attention layer, and one that predicts (MTP); BF16
    qwen35_q8   the same in Q8_0
    qwen35moe   hybrid_qwen35moe/: a GDN and an attention layer, both with experts, gate and up in one; F16
    qwen3next   hybrid_qwen3next/: the same of Qwen3-Next; BF16
    kimi_moe    hybrid_kimi_moe/: two KDA layers and one of MLA, the first of them dense, the others with experts; BF16
    kimi_q8     a smaller one of Kimi in Q8_0
    older       a tensor of hybrid_qwen3next in another form
    seeds       of these, smaller, to tests/fuzz/corpus/gguf

The folders hybrid_* are written here, too. Golden logits are those of transformers in FP32 with the weights of the folder; for Q8_0 with the weights that
the gguf package decodes, llama.cpp's order of heads, norms and decays undone here."""
import json, os, shutil, subprocess, sys, tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HERE = Path(__file__).resolve().parent
LENGTHS = (1, 2, 3, 5, 63, 65, 130, 257)
LOGITS, ANSWER = 64, 64


# ---------------------------------------------------------------- folders, in the layout of released ones
def fill(name, x, g, plain):
    """`plain`: all norms multiply by w, where those of Qwen but one multiply by 1 + w."""
    x = torch.randn(x.shape, generator=g)
    if name.endswith("A_log"):
        return torch.linspace(-3, 1.5, x.numel()).reshape(x.shape)
    if name.endswith("dt_bias"):
        return torch.linspace(-2, 1, x.numel())
    if name.endswith("e_score_correction_bias"):
        return 0.1 * x
    if "norm" in name:
        return 0.2 * x + (1 if plain or "linear_attn.norm" in name else 0)
    return x * (0.5 if "conv1d" in name else 1.0 if "embed" in name else 1.3 * x.shape[-1] ** -0.5)


def rows(prefix, **shapes):
    return {f"{prefix}{name.replace('__', '.')}.weight": shape for name, shape in shapes.items()}


def attention(prefix, c):
    h, q, kv, d = c.hidden_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim
    return rows(f"{prefix}self_attn.", q_proj=(2 * q * d, h), k_proj=(kv * d, h), v_proj=(kv * d, h), o_proj=(h, q * d), q_norm=(d,), k_norm=(d,))


def delta(prefix, c, fused):
    h, keys, heads = c.hidden_size, c.linear_num_key_heads, c.linear_num_value_heads
    k, v = keys * c.linear_key_head_dim, heads * c.linear_value_head_dim
    at = f"{prefix}linear_attn."
    shapes = rows(at, out_proj=(h, v), conv1d=(2 * k + v, 1, c.linear_conv_kernel_dim), norm=(c.linear_value_head_dim,))
    shapes |= {f"{at}A_log": (heads,), f"{at}dt_bias": (heads,)}
    if fused:
        return shapes | rows(at, in_proj_qkvz=(2 * k + 2 * v, h), in_proj_ba=(2 * heads, h))
    return shapes | rows(at, in_proj_qkv=(2 * k + v, h), in_proj_z=(v, h), in_proj_b=(heads, h), in_proj_a=(heads, h))


def mlp(prefix, h, i):
    return rows(prefix, gate_proj=(i, h), up_proj=(i, h), down_proj=(h, i))


def experts(prefix, c, fused):
    h, n, i, shared = c.hidden_size, c.num_experts, c.moe_intermediate_size, c.shared_expert_intermediate_size
    shapes = rows(prefix, gate=(n, h), shared_expert_gate=(1, h)) | mlp(f"{prefix}shared_expert.", h, shared)
    if fused:
        return shapes | {f"{prefix}experts.gate_up_proj": (n, 2 * i, h), f"{prefix}experts.down_proj": (n, h, i)}
    for e in range(n):
        shapes |= mlp(f"{prefix}experts.{e}.", h, i)
    return shapes


def qwen_shapes(c, mtp=False):
    """Also a layer that predicts the token after the next one, which transformers leaves out."""
    h, next_ = c.hidden_size, c.model_type == "qwen3_next"
    feed = lambda at: experts(f"{at}mlp.", c, not next_) if hasattr(c, "num_experts") else mlp(f"{at}mlp.", h, c.intermediate_size)
    shapes = {"model.embed_tokens.weight": (c.vocab_size, h), "lm_head.weight": (c.vocab_size, h), "model.norm.weight": (h,)}
    for i, kind in enumerate(c.layer_types):
        at = f"model.layers.{i}."
        shapes |= rows(at, input_layernorm=(h,), post_attention_layernorm=(h,)) | feed(at)
        shapes |= attention(at, c) if kind == "full_attention" else delta(at, c, next_)
    if mtp:
        at = "mtp.layers.0."
        shapes |= rows("mtp.", fc=(h, 2 * h), norm=(h,), pre_fc_norm_embedding=(h,), pre_fc_norm_hidden=(h,))
        shapes |= rows(at, input_layernorm=(h,), post_attention_layernorm=(h,)) | attention(at, c) | feed(at)
    return shapes


def kimi_shapes(c):
    h, lin = c["hidden_size"], c["linear_attn_config"]
    d, wide, q = lin["head_dim"], lin["num_heads"] * lin["head_dim"], c["num_attention_heads"]
    nope, rope, v, rank = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], h), "lm_head.weight": (c["vocab_size"], h), "model.norm.weight": (h,)}
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        shapes |= rows(at, input_layernorm=(h,), post_attention_layernorm=(h,))
        if i + 1 in lin["kda_layers"]:
            conv = (wide, 1, lin["short_conv_kernel_size"])
            shapes |= rows(f"{at}self_attn.", q_proj=(wide, h), k_proj=(wide, h), v_proj=(wide, h), b_proj=(lin["num_heads"], h), f_a_proj=(d, h),
                           f_b_proj=(wide, d), g_a_proj=(d, h), g_b_proj=(wide, d), q_conv1d=conv, k_conv1d=conv, v_conv1d=conv, o_norm=(d,),
                           o_proj=(h, wide))
            shapes |= {f"{at}self_attn.A_log": (1, 1, lin["num_heads"], 1), f"{at}self_attn.dt_bias": (wide,)}
        else:
            shapes |= rows(f"{at}self_attn.", q_proj=(q * (nope + rope), h), kv_a_proj_with_mqa=(rank + rope, h), kv_a_layernorm=(rank,),
                           kv_b_proj=(q * (nope + v), rank), o_proj=(h, q * v))
        if i < c["first_k_dense_replace"]:
            shapes |= mlp(f"{at}mlp.", h, c["intermediate_size"])
            continue
        at, n, inter = f"{at}block_sparse_moe.", c["num_experts"], c["moe_intermediate_size"]
        shapes |= rows(at, gate=(n, h)) | {f"{at}gate.e_score_correction_bias": (n,)} | mlp(f"{at}shared_experts.", h, inter)
        for e in range(n):
            shapes |= rows(f"{at}experts.{e}.", w1=(inter, h), w3=(inter, h), w2=(h, inter))
    return shapes


def write_folder(name, fields, shapes, seed):
    """BF16 weights; decays, their biases and the bias of the router in FP32."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    g = torch.Generator().manual_seed(seed)
    wide = ("A_log", "dt_bias", "e_score_correction_bias")
    plain = fields["model_type"] == "kimi_linear"
    tensors = {key: fill(key, torch.empty(shape), g, plain) for key, shape in sorted(shapes.items())}
    save_file({key: x if key.endswith(wide) else x.bfloat16() for key, x in tensors.items()}, folder / "model.safetensors")
    (folder / "model.safetensors").chmod(0o644)
    (folder / "config.json").write_text(json.dumps(fields, indent=1) + "\n")
    make_tokenizer(fields["vocab_size"]).save(str(folder / "tokenizer.json"))
    return folder


QWEN = dict(vocab_size=96, hidden_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=16, linear_num_key_heads=2, linear_key_head_dim=8,
            linear_value_head_dim=16, linear_conv_kernel_dim=4, rms_norm_eps=1e-6, max_position_embeddings=2048, tie_word_embeddings=False,
            rope_parameters={"rope_type": "default", "rope_theta": 50000.0, "partial_rotary_factor": 0.5}, eos_token_id=0, bos_token_id=None,
            pad_token_id=None)
EXPERTS = dict(num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], linear_num_value_heads=4, num_experts=4, num_experts_per_tok=2,
               moe_intermediate_size=16, shared_expert_intermediate_size=24)
KIMI = {"architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 40,
        "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
        "model_max_length": 2048, "kv_lora_rank": 32, "q_lora_rank": None, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
        "mla_use_nope": True, "num_experts": 4, "num_experts_per_token": 2, "num_shared_experts": 1, "moe_intermediate_size": 16,
        "first_k_dense_replace": 1, "moe_layer_freq": 1, "moe_router_activation_func": "sigmoid", "moe_renormalize": True, "routed_scaling_factor": 1.7,
        "use_grouped_topk": True, "num_expert_group": 1, "topk_group": 1, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": None,
        "linear_attn_config": {"kda_layers": [1, 3], "full_attn_layers": [2], "num_heads": 3, "head_dim": 16, "short_conv_kernel_size": 4}}


def qwen35_config():
    return transformers.Qwen3_5TextConfig(**QWEN, intermediate_size=32, num_hidden_layers=3, linear_num_value_heads=6,
                                          layer_types=["linear_attention", "full_attention", "linear_attention"])


def qwen_folder(name, config, architecture, seed, mtp=False):
    fields = config.to_dict() | {"architectures": [architecture]} | ({"mtp_num_hidden_layers": 1} if mtp else {})
    return write_folder(name, fields, qwen_shapes(config, mtp), seed)


# ---------------------------------------------------------------- conversion
def byte_letters():
    """The letter that stands for each byte in vocabularies of this kind."""
    plain = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(rest)}


def make_tokenizer(vocab):
    """Some bytes, and merges that words cut in one way or another allow or not. The models are asked with ids."""
    byte = byte_letters()
    merges = [("x", byte[0xcc]), ("a", byte[0xe5]), ("a", "B"), ("1", "2")]  # x and a combining accent; a Han character behind a
    needed = sorted({byte[b] for b in "x\u0301a\u5b57B12".encode()})
    letters = needed + [c for c in sorted(byte.values()) if c not in needed][:vocab - 4 - len(needed)]
    t = Tokenizer(models.BPE({c: i for i, c in enumerate(letters + ["".join(m) for m in merges])}, merges))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.decoder = decoders.ByteLevel()
    return t


def convert(llama_cpp, source, out, kind, pre, fields, options=()):
    """llama.cpp's converter; only the name of the pre-tokenizer, which it knows released tokenizers by, is put in its place."""
    with tempfile.TemporaryDirectory() as folder:
        config = json.loads((source / "config.json").read_text()) | fields
        (Path(folder) / "config.json").write_text(json.dumps(config))
        shutil.copy(source / "model.safetensors", folder)
        transformers.PreTrainedTokenizerFast(tokenizer_object=make_tokenizer(config["vocab_size"])).save_pretrained(folder)
        code = ("import runpy, sys\n_, home, pre, *rest = sys.argv\nsys.path[:0] = [home, home + '/gguf-py']\nfrom conversion import base\n"
                "base.TextModel.get_vocab_base_pre = lambda self, tokenizer: pre\nsys.argv = ['convert_hf_to_gguf.py'] + rest\n"
                "runpy.run_path(home + '/convert_hf_to_gguf.py', run_name='__main__')")
        subprocess.run([sys.executable, "-c", code, llama_cpp, pre, folder, "--outfile", str(out), "--outtype", kind, *options], check=True)


# ---------------------------------------------------------------- the same weights back
def grouped(x, keys, heads):
    """Value heads (the first dimension) from all first ones, all second ones, ... to those of the first key head, ..."""
    return x.reshape(heads // keys, keys, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)


def qwen35_weights(path, c):
    """The tensors of a GGUF file by the names and in the layout of the folder."""
    keys, heads, dk, dv = c.linear_num_key_heads, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
    names = {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
             "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
             "attn_qkv": "linear_attn.in_proj_qkv", "attn_gate": "linear_attn.in_proj_z", "ssm_beta": "linear_attn.in_proj_b",
             "ssm_alpha": "linear_attn.in_proj_a", "ssm_conv1d": "linear_attn.conv1d", "ssm_norm": "linear_attn.norm", "ssm_out": "linear_attn.out_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    weights, qk = {}, 2 * keys * dk
    for t in gguf.GGUFReader(path).tensors:
        x = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        x = x.reshape([int(n) for n in reversed(t.shape)])
        if not t.name.startswith("blk."):
            what, name = t.name, {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}[t.name]
        else:
            _, layer, what = t.name.split(".", 2)
            if int(layer) >= c.num_hidden_layers:
                continue
            special = {"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias"}
            name = f"model.layers.{layer}." + (special.get(what) or names[what.removesuffix(".weight")] + ".weight")
        if "norm" in what and not what.startswith("ssm"):
            x = x - 1
        if what.startswith(("attn_qkv", "ssm_conv1d")):
            x = np.concatenate([x[:qk], grouped(x[qk:], keys, heads)])
        elif what.startswith(("attn_gate", "ssm_beta", "ssm_alpha", "ssm_a", "ssm_dt")):
            x = grouped(x, keys, heads)
        elif what.startswith("ssm_out"):
            x = grouped(np.ascontiguousarray(x.T), keys, heads).T
        if what == "ssm_a":
            x = np.log(-x)
        if what.startswith("ssm_conv1d"):
            x = x[:, None, :]
        weights[name] = torch.from_numpy(np.ascontiguousarray(x))
    return weights


def kimi_weights(path):
    names = {"attn_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight", "attn_q.weight": "self_attn.q_proj.weight",
             "attn_k.weight": "self_attn.k_proj.weight", "attn_v.weight": "self_attn.v_proj.weight", "attn_output.weight": "self_attn.o_proj.weight",
             "attn_kv_a_mqa.weight": "self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_norm.weight": "self_attn.kv_a_layernorm.weight",
             "ssm_f_a.weight": "self_attn.f_a_proj.weight", "ssm_f_b.weight": "self_attn.f_b_proj.weight", "ssm_g_a.weight": "self_attn.g_a_proj.weight",
             "ssm_g_b.weight": "self_attn.g_b_proj.weight", "ssm_beta.weight": "self_attn.b_proj.weight", "ssm_norm.weight": "self_attn.o_norm.weight",
             "ssm_dt.bias": "self_attn.dt_bias", "ffn_gate.weight": "mlp.gate_proj.weight", "ffn_up.weight": "mlp.up_proj.weight",
             "ffn_down.weight": "mlp.down_proj.weight", "ffn_gate_inp.weight": "block_sparse_moe.gate.weight",
             "exp_probs_b.bias": "block_sparse_moe.gate.e_score_correction_bias",
             "ffn_gate_shexp.weight": "block_sparse_moe.shared_experts.gate_proj.weight",
             "ffn_up_shexp.weight": "block_sparse_moe.shared_experts.up_proj.weight",
             "ffn_down_shexp.weight": "block_sparse_moe.shared_experts.down_proj.weight"}
    roots = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
    weights, values = {}, {}
    for t in gguf.GGUFReader(path).tensors:
        values[t.name] = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape([int(n) for n in reversed(t.shape)])
    for key, x in values.items():
        if key in roots:
            weights[roots[key]] = x
            continue
        _, layer, what = key.split(".", 2)
        at = f"model.layers.{layer}."
        if what in names:
            weights[at + names[what]] = x
        elif what == "ssm_a":
            weights[f"{at}self_attn.A_log"] = np.log(-x).reshape(1, 1, -1, 1)
        elif what.startswith("ssm_conv1d"):
            weights[f"{at}self_attn.{what[11]}_conv1d.weight"] = x.reshape(-1, 1, x.shape[-1])
        elif what == "attn_k_b.weight":
            v = values[f"blk.{layer}.attn_v_b.weight"]
            weights[f"{at}self_attn.kv_b_proj.weight"] = np.concatenate([x.swapaxes(1, 2), v], axis=1).reshape(-1, v.shape[-1])
        elif "exps" in what:
            kind = {"gate": "w1", "up": "w3", "down": "w2"}[what.split("_")[1]]
            weights |= {f"{at}block_sparse_moe.experts.{e}.{kind}.weight": m for e, m in enumerate(x)}
        else:
            assert what == "attn_v_b.weight", what
    return {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in weights.items()}


@torch.no_grad()
def golden(model, vocab):
    g, items = torch.Generator().manual_seed(5), []
    for n in LENGTHS:
        ids = torch.randint(1, vocab, (n,), generator=g).tolist()
        logits = model(torch.tensor([ids])).logits[0, -1].float()
        answer = model.generate(torch.tensor([ids]), max_new_tokens=ANSWER, do_sample=False, eos_token_id=-1, pad_token_id=0)[0, n:].tolist()
        items.append({"ids": ids, "logits": [round(float(x), 6) for x in logits[:LOGITS]], "answer": answer})
    return items


def qwen35_golden(weights):
    config = qwen35_config()
    model = transformers.Qwen3_5ForCausalLM(config).float().eval()
    model.load_state_dict({name: x.float() for name, x in weights.items() if not name.startswith("mtp.")})
    return golden(model, config.vocab_size)


def folder_golden(folder):
    """Of transformers with the weights of the folder, all of them but those that predict."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    assert all(key.startswith("mtp.") for key in info["unexpected_keys"]), info
    return golden(model.eval(), model.config.vocab_size)


# ---------------------------------------------------------------- all
def qwen35(llama_cpp, result):
    folder = qwen_folder("hybrid_qwen35", qwen35_config(), "Qwen3_5ForCausalLM", 11, mtp=True)
    convert(llama_cpp, folder, HERE / "hybrid_qwen35.gguf", "bf16", "qwen35", {})
    weights = load_file(folder / "model.safetensors")
    for name, x in qwen35_weights(HERE / "hybrid_qwen35.gguf", qwen35_config()).items():
        assert torch.allclose(x, weights[name].float(), rtol=1e-6, atol=1e-6), name
    result["qwen35"] = folder_golden(folder)


def qwen35_q8(llama_cpp, result):
    convert(llama_cpp, HERE / "hybrid_qwen35", HERE / "hybrid_qwen35_q8.gguf", "q8_0", "qwen35", {})
    result["qwen35_q8"] = qwen35_golden(qwen35_weights(HERE / "hybrid_qwen35_q8.gguf", qwen35_config()))


def qwen35moe(llama_cpp, result):
    config = transformers.Qwen3_5MoeTextConfig(**QWEN, **EXPERTS)
    folder = qwen_folder("hybrid_qwen35moe", config, "Qwen3_5MoeForCausalLM", 12)
    convert(llama_cpp, folder, HERE / "hybrid_qwen35moe.gguf", "f16", "qwen35", {}, ["--no-mtp", "--fuse-gate-up-exps"])
    result["qwen35moe"] = folder_golden(folder)


def qwen3next(llama_cpp, result):
    config = transformers.Qwen3NextConfig(**QWEN, **EXPERTS, intermediate_size=48, decoder_sparse_step=1, mlp_only_layers=[], norm_topk_prob=True)
    folder = qwen_folder("hybrid_qwen3next", config, "Qwen3NextForCausalLM", 13)
    convert(llama_cpp, folder, HERE / "hybrid_qwen3next.gguf", "bf16", "qwen2", {}, ["--no-mtp"])
    result["qwen3next"] = folder_golden(folder)


def kimi_moe(llama_cpp, result):
    folder = write_folder("hybrid_kimi_moe", KIMI, kimi_shapes(KIMI), 14)
    convert(llama_cpp, folder, HERE / "hybrid_kimi_moe.gguf", "bf16", "kimi-k2", {})
    result["kimi_moe"] = folder_golden(folder)


def kimi_q8(llama_cpp, result):
    """Rows of whole blocks: k_b, v_b and experts are quantized, too."""
    linear = KIMI["linear_attn_config"] | {"kda_layers": [1], "full_attn_layers": [2], "num_heads": 2}
    config = KIMI | {"num_hidden_layers": 2, "qk_nope_head_dim": 32, "v_head_dim": 16, "moe_intermediate_size": 32, "intermediate_size": 32,
                     "linear_attn_config": linear}
    folder = write_folder("hybrid_kimi_q8", config, kimi_shapes(config), 15)
    convert(llama_cpp, folder, HERE / "hybrid_kimi_q8.gguf", "q8_0", "kimi-k2", {})
    save_file(kimi_weights(HERE / "hybrid_kimi_q8.gguf"), folder / "model.safetensors")
    result["kimi_q8"] = folder_golden(folder)
    shutil.rmtree(folder)


def older(llama_cpp, result):
    """Of the first layer of hybrid_qwen3next what older files of llama.cpp hold otherwise, written with the gguf package: ssm_in, whose rows are those of
    in_proj_qkvz."""
    weights = load_file(HERE / "hybrid_qwen3next/model.safetensors")
    writer = gguf.GGUFWriter(HERE / "hybrid_older.gguf", "qwen3next")
    for name in ("block_count", "ssm.group_count", "ssm.time_step_rank", "ssm.state_size", "ssm.inner_size"):
        writer.add_uint32(f"qwen3next.{name}", int(gguf.GGUFReader(HERE / "hybrid_qwen3next.gguf").fields[f"qwen3next.{name}"].contents()))
    writer.add_tensor("blk.0.ssm_in.weight", weights["model.layers.0.linear_attn.in_proj_qkvz.weight"].float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def seeds(llama_cpp, result):
    """For the fuzzer: the fields and the smaller tensors of the files, until a file has 20 KB of them."""
    for name, family in (("qwen35", "qwen35"), ("qwen35moe", "qwen35moe"), ("qwen3next", "qwen3next"), ("kimi_moe", "kimi-linear")):
        reader = gguf.GGUFReader(HERE / f"hybrid_{name}.gguf")
        writer, left = gguf.GGUFWriter(HERE / "../fuzz/corpus/gguf" / family, family), 20000
        for field in reader.fields.values():
            if field.name.startswith("GGUF.") or field.name == "general.architecture":
                continue
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=field.types[1] if len(field.types) > 1 else None)
        for t in sorted(reader.tensors, key=lambda t: (t.n_bytes, t.name)):
            if t.name != "token_embd.weight" and t.n_bytes > left:
                continue
            left -= t.n_bytes
            writer.add_tensor(t.name, np.array(t.data), raw_dtype=t.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def main():
    torch.set_num_threads(1)
    path = HERE / "hybrid_golden.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    makers = {f.__name__: f for f in (qwen35, qwen35_q8, qwen35moe, qwen3next, kimi_moe, kimi_q8, older, seeds)}
    for name in sys.argv[2:] or makers:
        makers[name](sys.argv[1], result)
    path.write_text(json.dumps(result, separators=(",", ":")) + "\n")
    for file in sorted(HERE.glob("hybrid_*")):
        print(file.name, os.path.getsize(file))


main()

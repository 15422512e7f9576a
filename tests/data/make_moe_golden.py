#!/usr/bin/env python3
"""Writes moe_*/ and moe_golden.json beside itself: small random models with mixtures of experts in FP32, and what transformers computes of them.

    python3 tests/data/make_moe_golden.py

needs torch and transformers (5.17 was used), which writes the folders in the released layout. Between them they have what the folders hybrid_* of
make_hybrid_gguf.py, in BF16, have not:

    moe_next   Qwen3-Next: three value heads a key head, a layer without experts among others, weights that are not normalised
    moe_35     Qwen3.5 with experts as the text part of a checkpoint with a vision tower, some tensors of it and of a layer that
               predicts (MTP); each expert in tensors of its own
    moe_kimi   Kimi-Linear: experts in groups, two shared experts, a router whose bias decides, weights that are not normalised
"""
import json, re
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HERE = Path(__file__).resolve().parent
LENGTHS, ANSWER = (1,) * 12 + (2, 3, 4, 5, 6, 7, 8, 63, 65, 140), 64
QWEN = dict(vocab_size=80, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=6,
            linear_key_head_dim=8, linear_value_head_dim=16, linear_conv_kernel_dim=4, rms_norm_eps=1e-6, max_position_embeddings=2048,
            tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 50000.0, "partial_rotary_factor": 0.5},
            num_experts=8, num_experts_per_tok=3, moe_intermediate_size=12, shared_expert_intermediate_size=20,
            eos_token_id=0, bos_token_id=None, pad_token_id=None)


def random_weights(model, seed, plain):
    """`plain`: all norms multiply by w, where those of Qwen but one multiply by 1 + w."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *model.named_buffers()]:
            x = torch.randn(p.shape, generator=g)
            if name.endswith("A_log"):
                p.copy_(torch.linspace(-3, 1.5, p.numel()).reshape(p.shape))
            elif name.endswith("dt_bias"):
                p.copy_(torch.linspace(-2, 1, p.numel()).reshape(p.shape))
            elif name.endswith("e_score_correction_bias"):
                p.copy_(0.3 * x)
            elif "norm" in name:
                p.copy_(0.2 * x + (1 if plain or "linear_attn.norm" in name else 0))
            elif "rotary" not in name:
                p.copy_(x * (0.5 if "conv1d" in name else 1.0 if "embed" in name else 1.3 * p.shape[-1] ** -0.5))
    return model.float().eval()


@torch.no_grad()
def golden(model, vocab):
    g, items = torch.Generator().manual_seed(6), []
    for n in LENGTHS:
        ids = torch.randint(1, vocab, (n,), generator=g).tolist()
        logits = model(torch.tensor([ids])).logits[0, -1].float()
        answer = model.generate(torch.tensor([ids]), max_new_tokens=ANSWER, do_sample=False, eos_token_id=-1, pad_token_id=0)[0, n:].tolist()
        items.append({"ids": ids, "logits": [round(float(x), 6) for x in logits], "answer": answer})
    return items


def save(model, name, fields, rename=lambda name: name, more={}):
    """In the released layout; with `fields` instead of what transformers would write to config.json."""
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    save_file({rename(key): x for key, x in tensors.items()} | more, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(fields, indent=1) + "\n")
    (folder / "generation_config.json").unlink(missing_ok=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[:fields.get("text_config", fields)["vocab_size"]]
    t = Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.decoder = decoders.ByteLevel()
    t.save(str(folder / "tokenizer.json"))
    return sorted(rename(key) for key in tensors)


def moe_next():
    config = transformers.Qwen3NextConfig(**QWEN, intermediate_size=24, decoder_sparse_step=1, mlp_only_layers=[1], norm_topk_prob=False,
                                          num_hidden_layers=3, layer_types=["linear_attention", "linear_attention", "full_attention"])
    model = random_weights(transformers.Qwen3NextForCausalLM(config), 21, False)
    names = save(model, "moe_next", config.to_dict() | {"architectures": ["Qwen3NextForCausalLM"]})
    assert "model.layers.0.mlp.experts.7.down_proj.weight" in names and "model.layers.0.linear_attn.in_proj_qkvz.weight" in names, names
    return golden(model, config.vocab_size)


def moe_35():
    config = transformers.Qwen3_5MoeTextConfig(**QWEN, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"])
    model = random_weights(transformers.Qwen3_5MoeForCausalLM(config), 22, False)
    g = torch.Generator().manual_seed(1)
    h = config.hidden_size
    more = {"model.visual.patch_embed.proj.bias": torch.randn(8, generator=g), "mtp.fc.weight": torch.randn(h, 2 * h, generator=g),
            "mtp.norm.weight": torch.randn(h, generator=g)}
    fields = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "tie_word_embeddings": False,
              "text_config": config.to_dict(), "vision_config": {"model_type": "qwen3_5_moe"}}
    names = save(model, "moe_35", fields, lambda name: re.sub(r"^model\.", "model.language_model.", name), more)
    assert "model.language_model.layers.0.mlp.experts.7.up_proj.weight" in names, names
    return golden(model, config.vocab_size)


def moe_kimi():
    fields = {"architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "vocab_size": 80, "hidden_size": 32, "intermediate_size": 40,
              "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_act": "silu", "rms_norm_eps": 1e-5,
              "tie_word_embeddings": False, "model_max_length": 2048, "kv_lora_rank": 24, "q_lora_rank": None, "qk_nope_head_dim": 16,
              "qk_rope_head_dim": 8, "v_head_dim": 12, "mla_use_nope": True, "num_experts": 8, "num_experts_per_token": 3, "num_shared_experts": 2,
              "moe_intermediate_size": 12, "first_k_dense_replace": 1, "moe_layer_freq": 1, "moe_router_activation_func": "sigmoid",
              "moe_renormalize": False, "routed_scaling_factor": 1.7, "use_grouped_topk": True, "num_expert_group": 4, "topk_group": 2,
              "bos_token_id": None, "eos_token_id": 0, "pad_token_id": None,
              "linear_attn_config": {"kda_layers": [1, 3], "full_attn_layers": [2], "num_heads": 3, "head_dim": 16, "short_conv_kernel_size": 4}}
    config = transformers.AutoConfig.for_model(**fields)
    model = random_weights(transformers.AutoModelForCausalLM.from_config(config), 23, True)
    names = save(model, "moe_kimi", fields, lambda name: name.replace("layers.0.block_sparse_moe", "layers.0.mlp"))  # a dense layer
    assert "model.layers.1.block_sparse_moe.experts.7.w2.weight" in names and "model.layers.0.self_attn.q_conv1d.weight" in names, names
    return golden(model, config.vocab_size)


def main():
    torch.set_num_threads(1)
    result = {f.__name__: f() for f in (moe_next, moe_35, moe_kimi)}
    (HERE / "moe_golden.json").write_text(json.dumps(result, separators=(",", ":")) + "\n")


main()

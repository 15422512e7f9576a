"""Write a trained model as a Hugging Face folder: config.json, model.safetensors (BF16; A_log and dt_bias FP32),
tokenizer.json, tokenizer_config.json, generation_config.json. Or store its weights in half of that, to train on from.

usage: export.py PRESET STATE TOKENIZER.json FOLDER
       export.py --compact STATE FILE.safetensors

STATE is whatever read_state() takes.
"""
import json
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import model as models

TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


POSITIONS = 65536  # what a program shall let through; training went to 8,192


def config_of(preset, eos, pad):
    c = models.PRESETS[preset]
    common = dict(vocab_size=c["vocab"], hidden_size=c["hidden"], intermediate_size=c["inter"],
                  num_hidden_layers=c["layers"], num_attention_heads=c["q_heads"], hidden_act="silu",
                  max_position_embeddings=POSITIONS, rms_norm_eps=c["eps"], tie_word_embeddings=True, eos_token_id=eos,
                  bos_token_id=None, pad_token_id=pad, dtype="bfloat16")
    if c["arch"] == "gdn":
        kinds = ["full_attention" if i in c["full"] else "linear_attention" for i in range(c["layers"])]
        return dict(model_type="qwen3_5_text", architectures=["Qwen3_5ForCausalLM"], **common,
                    num_key_value_heads=c["kv_heads"], head_dim=c["head_dim"],
                    rope_parameters={"rope_type": "default", "rope_theta": c["theta"],
                                     "partial_rotary_factor": c["rotary"] / c["head_dim"]},
                    attention_bias=False, attention_dropout=0.0, attn_output_gate=True,
                    linear_conv_kernel_dim=c["conv"], linear_key_head_dim=c["key_dim"],
                    linear_value_head_dim=c["value_dim"], linear_num_key_heads=c["key_heads"],
                    linear_num_value_heads=c["heads"], layer_types=kinds, mamba_ssm_dtype="float32")
    delta = [i + 1 for i in range(c["layers"]) if i not in c["full"]]
    return dict(model_type="kimi_linear", architectures=["KimiLinearForCausalLM"], **common,
                num_key_value_heads=c["q_heads"], head_dim=c["key_dim"], model_max_length=POSITIONS,
                kv_lora_rank=c["rank"], q_lora_rank=None, qk_nope_head_dim=c["nope"], qk_rope_head_dim=c["rope"],
                v_head_dim=c["v_dim"], mla_use_nope=True, rope_theta=10000.0, num_experts=None,
                num_experts_per_token=None, num_shared_experts=None, first_k_dense_replace=c["layers"],
                moe_layer_freq=1,
                linear_attn_config={"kda_layers": delta, "full_attn_layers": [i + 1 for i in c["full"]],
                                    "num_heads": c["heads"], "head_dim": c["key_dim"],
                                    "short_conv_kernel_size": c["conv"]})


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=1)
        f.write("\n")


def stored(name, tensor):
    return tensor.float() if name.endswith(("A_log", "dt_bias")) else tensor.bfloat16()


def export(preset, state, tokenizer_file, folder):
    os.makedirs(folder, exist_ok=True)
    tokenizer = Tokenizer.from_file(tokenizer_file)
    eos, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    save_file({k: stored(k, v).contiguous().cpu() for k, v in state.items()}, folder + "/model.safetensors",
              metadata={"format": "pt"})
    os.chmod(folder + "/model.safetensors", 0o644)
    write_json(folder + "/config.json", config_of(preset, eos, pad))
    write_json(folder + "/generation_config.json",
               {"eos_token_id": [eos, pad], "pad_token_id": pad, "temperature": 0.7, "top_p": 0.95})
    write_json(folder + "/tokenizer_config.json",
               {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
                "clean_up_tokenization_spaces": False, "add_bos_token": False, "chat_template": TEMPLATE})
    with open(tokenizer_file, "rb") as a, open(folder + "/tokenizer.json", "wb") as b:
        b.write(a.read())


def compact(state, path):
    """Matrices as INT8 codes with one FP32 scale a row, NAME and NAME.scale; the rest as export() stores it."""
    out = {}
    for name, tensor in state.items():
        if tensor.dim() == 2:
            rows = tensor.float().cpu()
            scale = rows.abs().amax(1).clamp(min=1e-12) / 127
            out[name], out[name + ".scale"] = (rows / scale[:, None]).round().to(torch.int8), scale
        else:
            out[name] = stored(name, tensor).contiguous().cpu()
    save_file(out, path, metadata={"format": "pt"})
    os.chmod(path, 0o644)


def read_state(path):
    """FP32 weights of a state.pt, of an exported model.safetensors or of a compact checkpoint."""
    state = load_file(path) if path.endswith(".safetensors") else torch.load(path, map_location="cpu")
    return {name: tensor.float() * (state[name + ".scale"][:, None] if tensor.dtype == torch.int8 else 1.0)
            for name, tensor in state.items() if not name.endswith(".scale")}


def load(preset, folder, device="cpu"):
    """The exported model, in FP32."""
    m = models.LM(models.PRESETS[preset])
    m.load_state_dict(read_state(folder + "/model.safetensors"))
    return m.to(device).eval()


if __name__ == "__main__":
    if sys.argv[1] == "--compact":
        compact(read_state(sys.argv[2]), sys.argv[3])
    else:
        export(sys.argv[1], read_state(sys.argv[2]), sys.argv[3], sys.argv[4])

"""Golden answers of Hugging Face transformers, for tests/test_transformers.c. Needs torch and transformers (5.17 was used), FP32.

usage: make_transformers_golden.py MODEL_DIR OUT_DIR

Writes OUT_DIR/transformers_golden.json: greedy answers and logits of MODEL_DIR (tiny-gdn), and OUT_DIR/random_qwen35/: a small random
model whose dimensions all differ (key_dim, value_dim, head_dim, three value heads a key head, a head of its own), with its logits.
"""
import json, os, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3_5TextConfig, Qwen3_5ForCausalLM
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

folder, out = sys.argv[1], sys.argv[2]
torch.set_num_threads(8)
torch.backends.cuda.matmul.allow_tf32 = False
LOGITS = 16


def chat(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def prompts():
    numbers = " ".join(f"{i} apples," for i in range(150))
    tasks = [json.loads(line)["messages"][0]["content"] for line in open(f"{folder}/../eval/registers-128.jsonl")][:3]
    recall = [json.loads(line)["messages"][0]["content"] for line in open(f"{folder}/../eval/recall-48.jsonl")][:2]
    return ["Alice", "A", "It was a dark and stormy night, and", "def main(argv):\n    ", "import os\nimport sys\n\n\nclass ", "The river was",
            "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse,",
            numbers, chat("Reverse: river stone apple cloud"), chat("Copy: " + "river stone apple cloud ember falcon " * 4)] \
        + [chat(t) for t in tasks] + [chat(t) for t in recall] + [chat("Add: 1234 + 8766")]


@torch.no_grad()
def golden(model, ids, new):
    x = torch.tensor([ids])
    logits = model(x).logits[0].float()
    answer = model.generate(x, max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0)[0, len(ids):].tolist() if new else []
    loss = torch.nn.functional.cross_entropy(logits[:-1], x[0, 1:]).item() if len(ids) > 1 else 0.0
    return {"ids": ids, "answer": answer, "loss": loss, "logits": logits[-1, :LOGITS].tolist()}


def random_model(path):
    torch.manual_seed(7)
    config = Qwen3_5TextConfig(
        vocab_size=256, hidden_size=20, intermediate_size=28, num_hidden_layers=5, num_attention_heads=6, num_key_value_heads=2, head_dim=40,
        linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=16, linear_value_head_dim=48, linear_conv_kernel_dim=4,
        layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"], rms_norm_eps=1e-5,
        max_position_embeddings=2048, tie_word_embeddings=False, attention_bias=False, hidden_act="silu",
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.4}, eos_token_id=0, bos_token_id=None, pad_token_id=0)
    model = Qwen3_5ForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("A_log"): p.copy_(torch.linspace(-3, 1.5, p.numel()))
            elif name.endswith("dt_bias"): p.copy_(torch.linspace(-2, 1, p.numel()))
            elif "norm" in name: p.copy_(torch.randn_like(p) * 0.2 + (1 if "linear_attn.norm" in name else 0))
            else: p.copy_(torch.randn_like(p) * (0.5 if "conv1d" in name else 0.15))
    model.save_pretrained(path)
    tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    tok.save(f"{path}/tokenizer.json")
    if os.path.exists(f"{path}/generation_config.json"): os.remove(f"{path}/generation_config.json")
    return model


tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
result = {"model": [golden(model, tokenizer(p).input_ids, 64) for p in prompts()]}
random = random_model(f"{out}/random_qwen35")
generator = torch.Generator().manual_seed(3)
result["random"] = [golden(random, torch.randint(1, 256, (n,), generator=generator).tolist(), 24) for n in (1, 2, 3, 5, 63, 64, 65, 200, 257, 300)]
json.dump(result, open(f"{out}/transformers_golden.json", "w"))
print([len(p["ids"]) for p in result["model"]], [p["answer"][:4] for p in result["random"]])
print(open(f"{out}/random_qwen35/config.json").read())

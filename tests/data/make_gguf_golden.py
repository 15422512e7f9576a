#!/usr/bin/env python3
"""Writes gguf_llama.gguf, gguf_qwen3.gguf, gguf_glm4.gguf, gguf_quant.gguf, gguf_blocks.bin and gguf_golden.json beside itself: small random models
as GGUF files, and what transformers computes with the same weights in FP32.

    python3 tests/data/make_gguf_golden.py LLAMA_CPP

needs torch, transformers, tokenizers and the gguf package. LLAMA_CPP holds llama.cpp's own converter (vendor/llama.cpp in the source package of
llama-cpp-python), which writes the files of the three architectures: F32, F16 and BF16 weights that are such numbers from the beginning, so nothing is
rounded. gguf_quant.gguf is that of llama with wider rows and a type of blocks for each matrix; the golden logits are those of a Hugging Face model that
holds the weights as the gguf package decodes them. gguf_blocks.bin has, for each type, random blocks and their values."""
import json, os, subprocess, sys, tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).resolve().parent
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BLOCKS = [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.Q4_K, Type.Q5_K, Type.Q6_K]
PROMPTS = ["Alice was beginning to get very tired of sitting by her sister on the bank.",
           "It's 2026, and 1234567 things they've counted…\n\n  def f(x):\n\treturn x**2\n", "Ünïcode: 日本語, русский, emoji 🙂🙂, e\u0301"]
TEXTS = PROMPTS + ["", " ", "a", "don't WE'LL I'M he'd", "  two  spaces   and\ttabs \n\n\n newlines \r\n", "0 12 345 6789 ½ ² ٣٤٥ Ⅷ", "e\u0301 vs \u00e9, \u1e9b\u0323",
                   "<|im_start|>user\nhi<|im_end|>", "<think>\nyes\n</think>", "[gMASK]<sop><|user|>\nhi<|assistant|>", "<|eot_id|> <|endoftext|>",
                   "\u00a0\u2003\u3000x\u180ey", "!!!???... --- ===", "x" * 60, "नमस्ते दुनिया", "السلام عليكم", "👩‍👩‍👧‍👦 👍🏽"]
SPECIALS = {"llama": ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
            "qwen3": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            "glm4": ["<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"],
            "smollm": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]}
CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
TEMPLATES = {"llama": "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + (m.content | trim) + '<|eot_id|>' }}"
                      "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
             "qwen3": CHATML, "smollm": CHATML,
             "glm4": "[gMASK]<sop>{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"}
TALK = [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "  Who is Alice? "}, {"role": "assistant", "content": "Carroll's"},
        {"role": "user", "content": "And the rest, 2026?"}]
PRE = {"llama": "llama-bpe", "qwen3": "qwen2", "glm4": "glm4", "smollm": "smollm"}


def make_tokenizer(kind):
    digits = "" if kind == "qwen3" else "{1,3}"
    t = Tokenizer(models.BPE(ignore_merges=kind in ("llama", "glm4")))
    if kind == "qwen3":
        t.normalizer = normalizers.NFC()
    first = pre_tokenizers.Digits(individual_digits=True) if kind == "smollm" else pre_tokenizers.Split(Regex(WORDS % digits), "isolated")
    t.pre_tokenizer = pre_tokenizers.Sequence([first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "smollm")])
    t.decoder = decoders.ByteLevel()
    text = (HERE / "../../models/eval/heldout_books.txt").read_text()[:200000]
    t.train_from_iterator([text, " 2026 1234 def return x 日本語 русский\n\n"],
                          trainers.BpeTrainer(vocab_size=370, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.add_special_tokens(SPECIALS[kind])
    if kind == "qwen3":
        t.add_tokens(["<think>", "</think>"])
    if kind == "llama":
        bos = SPECIALS["llama"][0]
        t.post_processor = processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, t.token_to_id(bos))])
    ends = {"llama": "<|eot_id|>", "qwen3": "<|im_end|>", "glm4": "<|endoftext|>", "smollm": "<|im_end|>"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=t, eos_token=ends[kind], bos_token=SPECIALS[kind][0] if kind == "llama" else None)
    fast.chat_template = TEMPLATES[kind]
    return fast


def make_model(kind, vocab, seed, round_to, **sizes):
    sizes = dict(vocab_size=vocab, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                 max_position_embeddings=512, rms_norm_eps=1e-5) | sizes
    if kind == "llama":
        config = transformers.LlamaConfig(**sizes, rope_parameters={"rope_type": "llama3", "rope_theta": 50000.0, "factor": 8.0, "low_freq_factor": 1.0,
                                                                   "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
                                          tie_word_embeddings=True, eos_token_id=None, bos_token_id=None)
    elif kind == "qwen3":
        config = transformers.Qwen3Config(**sizes, rope_parameters={"rope_type": "default", "rope_theta": 1e6}, tie_word_embeddings=False)
    else:
        config = transformers.Glm4Config(**sizes, rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
                                         attention_bias=True, tie_word_embeddings=False, pad_token_id=None, eos_token_id=None)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.randn(p.shape, generator=g)
            x = 1 + 0.2 * x if "norm" in name else 0.2 * x if p.dim() == 1 else x * (1.4 if "embed" in name else 1.6 * p.shape[1] ** -0.5)
            p.copy_(x.to(round_to).float())
    return model


def convert(llama_cpp, folder, out, kind, pre):
    """llama.cpp's converter; only the name of the pre-tokenizer, which it knows released tokenizers by, is put in its place."""
    code = ("import runpy, sys\n_, home, pre, *rest = sys.argv\nsys.path[:0] = [home, home + '/gguf-py']\nfrom conversion import base\n"
            "base.TextModel.get_vocab_base_pre = lambda self, tokenizer: pre\nsys.argv = ['convert_hf_to_gguf.py'] + rest\n"
            "runpy.run_path(home + '/convert_hf_to_gguf.py', run_name='__main__')")
    subprocess.run([sys.executable, "-c", code, llama_cpp, pre, folder, "--outfile", str(out), "--outtype", kind], check=True)


def greedy(model, tokenizer, tokens=24):
    items = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt)["input_ids"]
        sequence, logits = list(ids), None
        with torch.no_grad():
            for _ in range(tokens):
                last = model(torch.tensor([sequence])).logits[0, -1]
                logits = last if logits is None else logits
                sequence.append(int(last.argmax()))
        items.append({"ids": ids, "logits": [round(float(x), 6) for x in logits], "answer": sequence[len(ids):]})
    return items


def texts(tokenizer):
    return [{"text": t, "ids": tokenizer(t)["input_ids"]} for t in TEXTS]


def chat(tokenizer):
    text = tokenizer.apply_chat_template(TALK, tokenize=False, add_generation_prompt=True)
    return {"talk": TALK, "ids": tokenizer(text, add_special_tokens=False)["input_ids"]}


def random_blocks(rng, kind, n):
    """Blocks with any codes and scales of a sane size."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    raw = rng.integers(0, 256, (n, size), dtype=np.uint8)
    halves = {Type.Q6_K: [208]}.get(kind, [0, 2] if kind in (Type.Q4_1, Type.Q5_1, Type.Q4_K, Type.Q5_K) else [0])
    spread = {Type.Q8_0: 1e-3, Type.Q4_K: 5e-4, Type.Q5_K: 2.5e-4, Type.Q6_K: 3e-5}.get(kind, 1e-2 if kind in (Type.Q4_0, Type.Q4_1) else 5e-3)
    for i, at in enumerate(halves):
        scale = spread * (0.5 + rng.random(n))
        if i:  # the minimum: codes around zero
            scale = scale if kind in (Type.Q4_K, Type.Q5_K) else -scale
            scale = scale * {Type.Q4_1: 7.5, Type.Q5_1: 15.5, Type.Q4_K: 7.5, Type.Q5_K: 15.5}[kind]
        raw[:, at:at + 2] = scale.astype("<f2").view(np.uint8).reshape(n, 2)
    return raw


def quantized(rng, source, out):
    """`source` with each matrix in one type of blocks, all of them: those the package can write from the weights, the others random."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        sub = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub)
    kinds = {"token_embd": Type.Q8_0, "attn_q": Type.Q4_0, "attn_k": Type.Q4_1, "attn_v": Type.Q5_0, "attn_output": Type.Q5_1, "ffn_gate": Type.Q4_K,
             "ffn_up": Type.Q5_K, "ffn_down": Type.Q6_K}
    values = {}
    for t in reader.tensors:
        kind = kinds.get(t.name.replace(".weight", "").split(".")[-1])
        data = np.array(t.data, dtype=np.float32)
        if kind is None:
            writer.add_tensor(t.name, data)
        else:
            block = gguf.GGML_QUANT_SIZES[kind][0]
            if kind.name.endswith("_K"):
                raw = random_blocks(rng, kind, data.size // block).reshape(data.shape[0], -1)
            else:
                raw = gguf.quants.quantize(data, kind)
            data = gguf.quants.dequantize(raw, kind).reshape(data.shape)
            writer.add_tensor(t.name, raw, raw_dtype=kind)
        values[t.name] = data
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def to_llama(model, values):
    """Put GGUF tensors into a Hugging Face model: neighbouring rows of q and k there are half a head apart here."""
    names = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj"}
    state = {"model.embed_tokens.weight": values["token_embd.weight"], "model.norm.weight": values["output_norm.weight"]}
    for name, x in values.items():
        if not name.startswith("blk."):
            continue
        _, layer, what, _ = name.split(".")
        if what in ("attn_q", "attn_k"):
            dim = model.config.head_dim
            x = x.reshape(-1, dim // 2, 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        state[f"model.layers.{layer}.{names[what]}.weight"] = x
    result = model.load_state_dict({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in state.items()}, strict=False)
    assert not result.unexpected_keys and result.missing_keys in ([], ["lm_head.weight"]), result
    model.tie_weights()


def write_blocks(rng):
    """For each type: four blocks, then their values in FP32."""
    with open(HERE / "gguf_blocks.bin", "wb") as f:
        for kind in BLOCKS:
            raw = random_blocks(rng, kind, 4)
            raw[3, -2:] = [0x01, 0x80] if kind == Type.Q6_K else raw[3, -2:]  # a subnormal negative scale
            f.write(raw.tobytes())
            f.write(gguf.quants.dequantize(raw, kind).astype("<f4").tobytes())


def main():
    golden = {}
    torch.set_num_threads(1)
    for seed, (kind, outtype, dtype) in enumerate([("llama", "f32", torch.float32), ("qwen3", "f16", torch.float16), ("glm4", "bf16", torch.bfloat16)]):
        tokenizer = make_tokenizer(kind)
        model = make_model(kind, len(tokenizer), seed, dtype)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            convert(sys.argv[1], folder, HERE / f"gguf_{kind}.gguf", outtype, PRE[kind])
        golden[kind] = {"items": greedy(model, tokenizer), "texts": texts(tokenizer), "chat": chat(tokenizer)}
    tokenizer = make_tokenizer("smollm")
    model = make_model("llama", len(tokenizer), 7, torch.float32, hidden_size=256, intermediate_size=256, num_hidden_layers=1, head_dim=32)
    rng = np.random.default_rng(3)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        convert(sys.argv[1], folder, Path(folder) / "wide.gguf", "f32", PRE["smollm"])
        to_llama(model, quantized(rng, Path(folder) / "wide.gguf", HERE / "gguf_quant.gguf"))
    golden["quant"] = {"items": greedy(model, tokenizer), "texts": texts(tokenizer), "chat": chat(tokenizer)}
    write_blocks(rng)
    (HERE / "gguf_golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    for file in sorted(HERE.glob("gguf_*")):
        print(file.name, os.path.getsize(file))


main()

#!/usr/bin/env python3
"""Models, tokenizers and chat templates of softmax-attention models, for tests/test_softmax_*.c.

    make_softmax_golden.py REPOSITORY [--text]

Needs torch, transformers (5.17 was used) and tokenizers. Writes into REPOSITORY/tests/data:
  softmax_qwen3/ softmax_llama/ softmax_smollm/ softmax_glm4/   small random checkpoints in BF16
  softmax_models.json   of each: prompts, greedy answers and logits of transformers in FP32
  softmax_text.json     tokenizers as patches of the bundled model's, with what `tokenizers` makes of many texts; chat
                        templates, with what transformers' apply_chat_template makes of conversations
"""
import json
import os
import random
import struct
import sys

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import Glm4Config, Glm4ForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

LOGITS = 32
LENGTHS = (1, 2, 3, 5, 63, 64, 65, 130, 257)

# ---- models ----

COMMON = dict(vocab_size=256, num_hidden_layers=2, max_position_embeddings=2048, hidden_act="silu", eos_token_id=0, bos_token_id=None, pad_token_id=0)
MODELS = {
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**COMMON, hidden_size=48, intermediate_size=80, num_attention_heads=6, num_key_value_heads=2, head_dim=32,
        rms_norm_eps=1e-6, tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})),
    # Two waves keep their frequency, one lies inside the band, and five are divided by the factor.
    "llama": (LlamaForCausalLM, LlamaConfig(**COMMON, hidden_size=48, intermediate_size=88, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 160})),
    # As SmolLM2, and with all the biases that the architecture may have.
    "smollm": (LlamaForCausalLM, LlamaConfig(**COMMON, hidden_size=60, intermediate_size=72, num_attention_heads=6, num_key_value_heads=3,
        rms_norm_eps=1e-5, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, rope_parameters={"rope_type": "default", "rope_theta": 100000.0})),
    "glm4": (Glm4ForCausalLM, Glm4Config(**COMMON, hidden_size=48, intermediate_size=72, num_attention_heads=6, num_key_value_heads=2, head_dim=24,
        rms_norm_eps=1e-5, tie_word_embeddings=False, attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5})),
}


def byte_tokenizer(path):
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(path)


def make_model(name, folder):
    torch.manual_seed(sum(map(ord, name)))
    make, config = MODELS[name]
    model = make(config).float().eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if key.endswith(".bias"): p.copy_(torch.randn_like(p) * 0.3)
            elif "norm" in key: p.copy_(torch.randn_like(p) * 0.2 + 1)
            else: p.copy_(torch.randn_like(p) * (0.6 if "embed" in key else 0.2))
            p.copy_(p.bfloat16().float())
    os.makedirs(folder, exist_ok=True)
    tensors = {k: v.bfloat16() for k, v in model.named_parameters() if not (k == "lm_head.weight" and config.tie_word_embeddings)}
    save_file(tensors, f"{folder}/model.safetensors")
    os.chmod(f"{folder}/model.safetensors", 0o644)
    config.architectures = [make.__name__]
    config.dtype = "bfloat16"
    config.save_pretrained(folder)
    byte_tokenizer(f"{folder}/tokenizer.json")
    return model


@torch.no_grad()
def answer(model, ids, new):
    x = torch.tensor([ids])
    logits = model(x).logits[0, -1, :LOGITS].tolist()
    out = model.generate(x, max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0)[0, len(ids):].tolist()
    return {"ids": ids, "answer": out, "logits": [round(v, 6) for v in logits]}


def write_models(data):
    torch.set_num_threads(1)
    golden = {}
    for name in MODELS:
        model = make_model(name, f"{data}/softmax_{name}")
        generator = torch.Generator().manual_seed(3)
        golden[name] = [answer(model, torch.randint(1, 256, (n,), generator=generator).tolist(), 24) for n in LENGTHS]
        print(name, [g["answer"][:4] for g in golden[name]], max(abs(v) for g in golden[name] for v in g["logits"]))
    with open(f"{data}/softmax_models.json", "w") as file:
        json.dump(golden, file, separators=(",", ":"))


# ---- tokenizers ----

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXTS = 2200
SPELLED = 150  # texts whose ids are written out; of all there is a hash
SPACES = [" ", "  ", "    ", "\t", "\n", "\n\n", "\r\n", " \n", "\n ", "\v", "\x85", "\xa0", "\u2003", "\u200b", "\u2028", "\u3000"]
PIECES = ["'s", "'S", "'LL", "don't", "I'Ve", "x", "the", " the", "Hello", "_", "-", "...", "$", "\\", "{}", "();", "\u0663", "\xbd", "\u2167", "\xb2",
          "caf\xe9", "cafe\u0301", "q\u0307\u0323", "\uac01", "\u0928\u093f", "\u0e44\u0e17\u0e22", "\u05e2\u05b4\u05d1", "\u0627\u0644\u0639\u064e",
          "\u6f22\u5b57", "\u3072\u3089\u304c\u306a", "\u30ab\u3099", "\u212b", "\ufb01", "\u01c5", "\u0417\u0434\u0440", "\u4e2d\u6587\u3002", "\uff0c",
          "\U0001f468\u200d\U0001f469", "\U0001f1e9\U0001f1ea", "\U0001f44b\U0001f3fd", "\u2764\ufe0f", "\x00", "\x04", "\x06", "\x13", "\x1b[0m", "\x7f",
          "\U000500f1", "\U000a0000"]
SPECIAL = {"llama3": ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>"],
           "glm4": ["<|endoftext|>", "[MASK]", "[gMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"],
           "smollm": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "qwen3": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]}


def number(draw):
    return str(draw.randrange(10 ** draw.randrange(1, 12)))


def make_texts(draw, corpora):
    def line():
        text = draw.choice(corpora)
        at = draw.randrange(len(text))
        return text[at : at + draw.randrange(1, 40)]

    def pieces():
        kinds = [lambda: draw.choice(SPACES), lambda: draw.choice(PIECES), lambda: draw.choice(PIECES), lambda: number(draw)]
        return "".join(draw.choice(kinds)() for _ in range(draw.randrange(1, 7)))

    def points():
        tops = [0x80, 0x800, 0x3000, 0x11000]  # stays below the blocks that newer Unicode versions fill
        some = (draw.randrange(draw.choice(tops)) for _ in range(draw.randrange(1, 7)))
        return "".join(chr(c) for c in some if not 0xD800 <= c < 0xE000)

    texts = [""] + SPACES + PIECES + [s for name in SPECIAL for s in SPECIAL[name]]
    while len(texts) < TEXTS:
        texts.append(draw.choice([line, pieces, pieces, points])())
    return texts


def added_tokens(name, first):
    """The library numbers added tokens on from the vocabulary, whatever the file says."""
    return [dict(id=first + i, content=c, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True) for i, c in enumerate(SPECIAL[name])]


def patches(base, texts):
    """Of each tokenizer: what is merged into the bundled model's tokenizer.json, and the keys that its vocabulary loses;
    and merges that all of them have behind the model's own."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}

    def split(pattern):
        return {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, byte_level]}

    def begins(added, tokens):
        ids = {t["content"]: t["id"] for t in added}
        single = [{"SpecialToken": {"id": t, "type_id": 0}} for t in tokens] + [{"Sequence": {"id": "A", "type_id": 0}}]
        return {"type": "Sequence", "processors": [byte_level, {"type": "TemplateProcessing", "single": single, "pair": single,
                "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in tokens}}]}

    # Words that no merge makes: what ignore_merges is about.
    words = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WORDS % "{1,3}"), "isolated"),
                                     pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    count = {}
    for text in texts:
        for word, _ in words.pre_tokenize_str(text): count[word] = count.get(word, 0) + 1
    new = sorted(w for w in count if len(w) > 3 and count[w] > 2 and w not in base["model"]["vocab"])[:60]
    assert len(new) > 20
    size = len(base["model"]["vocab"])
    assert all(f"{i:02}" not in base["model"]["vocab"] for i in range(100))
    numbers = {**{f"{i:02}": size + i for i in range(100)}, **{f"{i:03}": size + 100 + i // 7 for i in range(0, 1000, 7)}}
    merges = [[n[:-1], n[-1]] for n in numbers]  # so that it shows where digits are cut
    size += len(numbers)
    whole = {w: size + i for i, w in enumerate(new)}
    llama3, glm4 = added_tokens("llama3", size + len(new)), added_tokens("glm4", size)
    lost = ["\u0104", "\u0106", "\u0113", "\xf1", "\xf2"]  # the bytes 04, 06, 13, f1 and f2; others take their ids
    stand_ins = {f"zqzq{i}": base["model"]["vocab"][key] for i, key in enumerate(lost)}
    return {
        "qwen3": ({"normalizer": {"type": "NFC"}, "pre_tokenizer": split(WORDS % ""), "post_processor": byte_level,
                   "added_tokens": added_tokens("qwen3", size), "model": {"vocab": numbers}}, []),
        "llama3": ({"normalizer": None, "pre_tokenizer": split(WORDS % "{1,3}"), "model": {"ignore_merges": True, "vocab": {**numbers, **whole}},
                    "post_processor": begins(llama3, ["<|begin_of_text|>"]), "added_tokens": llama3}, []),
        "glm4": ({"normalizer": None, "pre_tokenizer": split(WORDS % "{1,3}"), "post_processor": begins(glm4, ["[gMASK]", "<sop>"]),
                  "added_tokens": glm4, "model": {"vocab": numbers}}, []),
        "smollm": ({"normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True},
                    {**byte_level, "use_regex": True}]}, "post_processor": None, "added_tokens": added_tokens("smollm", size),
                    "model": {"vocab": {**numbers, **stand_ins}}}, lost),
    }, merges


def patched(base, patch, removed, merges):
    out = json.loads(json.dumps(base))

    def merge(into, values):
        for key, value in values.items():
            if isinstance(value, dict) and isinstance(into.get(key), dict): merge(into[key], value)
            else: into[key] = value

    for key in removed:
        assert not any(key in "".join(m) for m in out["model"]["merges"])
        del out["model"]["vocab"][key]
    merge(out, patch)
    out["model"]["merges"] += merges
    return Tokenizer.from_str(json.dumps(out))


def fnv(ids):
    hash = 0xCBF29CE484222325
    for byte in b"".join(struct.pack("<i", i) for i in ids):
        hash = (hash ^ byte) * 0x100000001B3 % 2**64
    return "%08x" % (hash % 2**32)


# ---- conversations ----

CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
CHATML_SYSTEM = ("{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a model in a test, and short.<|im_end|>\n' }}{% endif %}") + CHATML
LLAMA3 = ("{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
LLAMA3_DATED = ("{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim %}{% set rest = messages[1:] %}"
                "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
                "{{ '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n' + system + '<|eot_id|>' }}"
                "{% for m in rest %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
GLM4 = ("[gMASK]<sop>{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")
CHATS = [("qwen3", CHATML), ("smollm", CHATML_SYSTEM), ("llama3", LLAMA3), ("llama3", LLAMA3_DATED), ("glm4", GLM4)]


def make_chats(draw, texts):
    chats = [[["user", "Hello"]], [["system", "  Be brief. \n"], ["user", "\u3000Hi\x1c "]], [["user", ""], ["assistant", " "], ["user", "1 + 1"]]]
    special = [s for name in SPECIAL for s in SPECIAL[name]]
    plain = [t for t in texts if "\0" not in t and not any(s in t for s in special)]
    while len(chats) < 40:
        chat = [["system", draw.choice(plain)]] if draw.random() < 0.4 else []
        for i in range(draw.randrange(0 if chat else 1, 5)): chat.append([["user", "assistant"][i % 2], draw.choice(plain)])
        chats.append(chat)
    return chats


def write_text(data, base_path, corpora):
    draw = random.Random(20250308)
    base = json.load(open(base_path, encoding="utf-8"))
    texts = make_texts(draw, corpora)
    tokenizers, (changes, merges) = {}, patches(base, texts)
    golden = {"texts": texts, "merges": merges, "tokenizers": {}, "chats": []}
    for name, (patch, removed) in changes.items():
        t = tokenizers[name] = patched(base, patch, removed, merges)
        ids = [t.encode(x, add_special_tokens=False).ids for x in texts]
        both = t.encode("a", add_special_tokens=True).ids
        golden["tokenizers"][name] = {"patch": patch, "removed": removed, "prefix": both[: len(both) - len(t.encode("a", add_special_tokens=False).ids)],
                                      "ids": ids[:SPELLED], "hashes": "".join(fnv(i) for i in ids)}
    for name, t in tokenizers.items():
        for token in golden["tokenizers"][name]["patch"]["added_tokens"]: assert t.token_to_id(token["content"]) == token["id"]
    for name, template in CHATS:
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizers[name], chat_template=template)
        if name == "llama3": fast.bos_token = "<|begin_of_text|>"
        lines = []
        for i, chat in enumerate(make_chats(draw, texts)):
            messages = [{"role": r, "content": c} for r, c in chat]
            ids = fast.apply_chat_template(messages, tokenize=True, add_generation_prompt=i % 3 != 0, return_dict=False)
            lines.append({"chat": chat, "reply": i % 3 != 0, "ids": ids})
        golden["chats"].append({"tokenizer": name, "template": template, "lines": lines})
    with open(f"{data}/softmax_text.json", "w", encoding="utf-8") as file:
        json.dump(golden, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    repository = sys.argv[1]
    write_text(f"{repository}/tests/data", f"{repository}/models/tiny-gdn/tokenizer.json",
               [open(f"{repository}/{p}", encoding="utf-8").read() for p in ("README.md", "docs/methods.md", "src/core/system.c", "src/model/kimi.c")])
    if "--text" not in sys.argv: write_models(f"{repository}/tests/data")

#!/usr/bin/env python3
"""Writes smollm2_golden.json beside itself: what transformers computes in FP32 with SmolLM2-135M-Instruct as it reads it from the GGUF file (it decodes
the Q4_1 and Q8_0 weights by the gguf package and undoes the order of rows by itself), and the ids that the tokenizers library gives with the file's
vocabulary and merges and the steps of SmolLM2's tokenizer.json.

    python3 tests/data/make_smollm2_golden.py SmolLM2-135M-Instruct.Q4_1.gguf

needs torch, transformers, tokenizers and the gguf package; scripts/get_smollm2.sh fetches the file."""
import json, random, sys
from pathlib import Path

import gguf
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CHAT = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = ["The capital of France is", CHAT % "What is gravity? Answer in two sentences.", CHAT % "Write a Python function that adds two numbers.",
           "Once upon a time, in 1937, there was"]


def tokenizer_of(reader):
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    kinds = reader.fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    t = Tokenizer(models.BPE(vocab={x: i for i, x in enumerate(tokens)}, merges=merges))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(x, special=True, normalized=False) for x, k in zip(tokens, kinds) if k == 3])
    return t


def texts():
    """Plain ones, then random mixtures of scripts, digits, spaces and signs, control characters among them."""
    r = random.Random(2)
    pieces = ["the ", "Hello", "don't", "We'LL", " I'm", "1", "23", "4567", "½", "٣", "Ⅷ", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "日本語", "русский", "é", "e\u0301",
              "🙂", "👩‍👩‍👧", "...", "!?", "{\"a\": [1, 2]}", "<|im_end|>", "<|endoftext|>", "\x04", "\x13", "\x16a", "\x1d", "\u00a0", "\u3000", "_x_", "C++", "नमस्ते", "العربية", "ZÜRICH"]
    return PROMPTS + ["", "a\x04b"] + ["".join(r.choice(pieces) for _ in range(r.randint(1, 14))) for _ in range(400)]


def main():
    path = Path(sys.argv[1]).resolve()
    t = tokenizer_of(gguf.GGUFReader(path))
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    items = []
    for prompt in PROMPTS:
        ids = t.encode(prompt).ids
        sequence, first, past, gaps = list(ids), None, None, []
        with torch.no_grad():
            for _ in range(64):
                out = model(torch.tensor([sequence if past is None else sequence[-1:]]), past_key_values=past, use_cache=True)
                past, last = out.past_key_values, out.logits[0, -1]
                first = last if first is None else first
                top = last.topk(2)
                gaps.append(float(top.values[0] - top.values[1]))  # where it is small another order of sums may choose the other token
                sequence.append(int(top.indices[0]))
        at = list(range(0, first.numel(), 193))
        items.append({"ids": ids, "at": at, "logits": [round(float(first[i]), 5) for i in at], "answer": sequence[len(ids):],
                      "least_gap": round(min(gaps), 5)})
        print(t.decode(items[-1]["answer"])[:200], min(gaps))
    golden = {"items": items, "texts": [{"text": x, "ids": t.encode(x).ids} for x in texts()]}
    (Path(__file__).resolve().parent / "smollm2_golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


main()

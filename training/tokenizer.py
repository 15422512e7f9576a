"""Train the byte-level BPE tokenizer that the small models share (Qwen2's Split expression, 8,192 entries).

usage: tokenizer.py CORPUS TOKENIZER.json
"""
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import data
import tasks

ENTRIES = 8192
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
         r"\s+(?!\S)|\s+")


def plain(text):
    for s in SPECIAL:
        text = text.replace(s, "\n")
    return text


def main():
    text, rng = data.read_corpus(sys.argv[1]), random.Random(0)
    pieces = [text[i:i + 200_000] for i in range(0, len(text), 200_000)]
    pieces = rng.sample(pieces, min(100, len(pieces)))
    pieces += [tasks.sample(rng, text[:5_000_000], "hybrid-short") for _ in range(1500)]
    byte_level = dict(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(**byte_level)])
    tokenizer.decoder = decoders.ByteLevel(**byte_level)
    trainer = trainers.BpeTrainer(vocab_size=ENTRIES - len(SPECIAL), special_tokens=[], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([plain(p) for p in pieces], trainer)
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    tokenizer.save(sys.argv[2])


if __name__ == "__main__":
    main()

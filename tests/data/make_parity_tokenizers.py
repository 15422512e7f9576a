#!/usr/bin/env python3
"""Writes the data of tests/test_parity_tokenizers.c: real texts and code, and what the libraries `tokenizers` and
`tiktoken` make of them with the patterns of released models.

    make_parity_tokenizers.py DJANGO_WHEEL_UNPACKED SOURCE_DIRECTORY OUTPUT_DIRECTORY

All three files are of one run (Django 5.2, Babel 2.19, tokenizers 0.23.3, tiktoken 0.14.0): other sources give others.

  parity_texts.txt   the texts, each ended by the byte 0x1e. From Django (BSD-3-Clause: translations into some hundred
                     languages, Python, JavaScript, HTML, CSS), from Unicode CLDR by way of Babel (Unicode-3.0: names
                     in some 700 locales), from this project's C, and mixtures of them; parity_texts.LICENSE has the
                     notices
  parity_merges.txt  merges of a small byte-level BPE trained on the same sources, as tokenizer.json has them; then, for
                     Kimi alone, words that are tokens although no merge leads to them
  parity_hashes.bin  a 32-bit hash (FNV-1a, both halves of 64 bits xored) of the ids of every text, little-endian: by
                     the pattern of Qwen2, of Qwen3.5, and of Kimi
"""
import glob
import json
import os
import random
import re
import struct
import sys
import unicodedata

import tiktoken
from babel import Locale, localedata
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXTS, MERGES, END = 20480, 4700, "\x1e"

WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?LETTERS+|\p{N}| ?[^\s\p{L}MARKS\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = WORDS.replace("LETTERS", r"\p{L}").replace("MARKS", "")
QWEN35 = WORDS.replace("LETTERS", r"[\p{L}\p{M}]").replace("MARKS", r"\p{M}")
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
TAIL = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = "|".join([r"[\p{Han}]+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{TAIL}",
                 rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{TAIL}", r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*",
                 r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
KIMI_SPECIAL = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 7: "[EOT]",
                10: "<|im_system|>", 11: "<|tool_calls_section_begin|>", 17: "<|im_middle|>", 254: "[UNK]",
                255: "[PAD]"}

SPACES = [" ", "  ", "    ", "\t", "\n", "\n\n", "\r\n", " \n", "\n ", "\v", "\f", "\x85", "\xa0", "\u1680", "\u2003",
          "\u200b", "\u2028", "\u3000", "\ufeff"]
PIECES = ["'s", "'S", "'\u017f", "'LL", "'ve", "don't", "_", "-", "...", "{}", "();", "1", "123", "2024", "3.14159",
          "\u0663\u0664\u0665\u0666", "\xbd", "\u2167", "\xb2", "ne\u0301", "a\u0323\u0307", "\u0300",
          "\u1100\u1161\u11a8",
          "\u0928\u093f", "\u30ab\u3099", "\u212b", "\ufb01", "\u01c5", "\u02b0", "\xaa", "\ue000", "\u3005", "\u3007",
          "\u30fb", "\u30fc", "\u3001", "\u3002", "\uff21", "\U00020000", "\u2e80", "\u3021",
          "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\U0001f44b\U0001f3fd", "\u2764\ufe0f",
          "\x00", "\x01", "\x7f"] + QWEN_SPECIAL + [KIMI_SPECIAL[0], KIMI_SPECIAL[17], "<|im_", "|>",
          "<|tool_calls_section_begin|>"]


def known(text):
    """Neither assigned after Unicode 14, which PCRE2 10.42 has, nor the mark between texts."""
    return END not in text and all(unicodedata.category(c) not in ("Cn", "Cs") for c in text)


def translations(django):
    by_language = {}
    for path in sorted(glob.glob(os.path.join(django, "**", "*.po"), recursive=True)):
        language = path.split(os.sep)[-3]
        for block in open(path, encoding="utf-8").read().split("\n\n"):
            for match in re.findall(r'^msgstr(?:\[\d\])? ((?:"(?:[^"\\]|\\.)*"\n?)+)', block, re.M):
                text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', match))
                text = text.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
                if len(text) > 3 and "Content-Type:" not in text:
                    by_language.setdefault(language, []).append(text)
    return by_language


def names():
    by_locale = {}
    for name in localedata.locale_identifiers():
        locale = Locale.parse(name)
        texts = [*locale.languages.values(), *locale.territories.values(), *locale.currencies.values(),
                 *[f"{u}" for unit in locale._data["unit_patterns"].values() for form in unit.values()
                   if isinstance(form, dict) for u in form.values() if isinstance(u, str)],
                 *[p.pattern for p in locale.date_formats.values()]]
        by_locale[name] = sorted({t for t in texts if len(t) > 4})
    return by_locale


def sources(*patterns):
    files = sorted(f for p in patterns for f in glob.glob(p, recursive=True) if os.path.getsize(f) > 500)
    return [open(f, encoding="utf-8").read() for f in files if ".min." not in f and "/vendor/" not in f]


class Maker:
    def __init__(self, django, project):
        self.random = random.Random(20261201)
        self.translations = translations(django)
        self.names = names()
        self.code = [sources(f"{django}/**/*.{e}") for e in ("py", "js", "html", "css")]
        self.code.append(sources(f"{project}/src/**/*.c", f"{project}/include/ebb/*.h"))

    def window(self, text, most):
        begin = 0 if self.random.random() < 0.6 else self.random.randrange(len(text))
        text = text[begin:begin + self.random.randrange(8, most)]
        while len(text.encode()) > most: text = text[:-1]
        return text

    def translated(self):
        return self.window(self.random.choice(self.translations[self.random.choice(sorted(self.translations))]), 92)

    def named(self):
        texts = self.names[self.random.choice(sorted(self.names))]
        return self.window(self.random.choice(texts), 56) if texts else "-"

    def coded(self):
        text = self.random.choice(self.random.choice(self.code))
        begin = self.random.randrange(len(text))
        return text[begin:begin + self.random.randrange(12, 84)]

    def mixed(self):
        makers = [lambda: self.random.choice(SPACES), lambda: self.random.choice(PIECES),
                  lambda: self.window(self.translated(), 14), lambda: self.window(self.coded(), 12)]
        text = "".join(self.random.choice(makers)() for _ in range(self.random.randrange(2, 7)))
        return unicodedata.normalize("NFD", text) if self.random.random() < 0.3 else text

    def texts(self):
        makers = [self.translated] * 8 + [self.named] * 3 + [self.coded] * 5 + [self.mixed] * 4
        seen = {}
        while len(seen) < TEXTS:
            text = makers[len(seen) % len(makers)]()
            if text and known(text): seen[text] = True
        return list(seen)


def train(maker):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = steps(QWEN35)
    trainer = trainers.BpeTrainer(vocab_size=256 + MERGES, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    texts = [t for l in sorted(maker.translations) for t in maker.translations[l]]
    texts += [t for l in sorted(maker.names) for t in maker.names[l]] + [t for kind in maker.code for t in kind]
    tokenizer.train_from_iterator(texts, trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in merges]


def steps(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_characters():
    printable = [i for i in range(256) if 0x21 <= i <= 0x7E or (0xA1 <= i and i != 0xAD)]
    others = [i for i in range(256) if i not in printable]
    return {**{i: chr(i) for i in printable}, **{i: chr(0x100 + k) for k, i in enumerate(others)}}


def qwen(pattern, merges):
    characters = byte_characters()
    vocab = {characters[i]: i for i in range(256)}
    for a, b in merges: vocab[a + b] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFC(), steps(pattern)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(QWEN_SPECIAL)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def kimi(merges, words=()):
    of = {c: i for i, c in byte_characters().items()}
    tokens = [bytes([i]) for i in range(256)] + [bytes(of[c] for c in a + b) for a, b in merges]
    tokens += [word.encode() for word in words]
    ranks = {token: rank for rank, token in enumerate(tokens)}
    assert len(ranks) == len(tokens)
    special = {KIMI_SPECIAL.get(i, f"<|reserved_token_{len(ranks) + i}|>"): len(ranks) + i for i in range(256)}
    encoding = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=special)
    return lambda text: encoding.encode(text, allowed_special="all")


def unreachable(texts, encode):
    """Words of some texts that are three tokens or more."""
    words = {}
    for text in texts:
        for word in re.findall(r"(?<![\w ]) ?[a-zA-Z]{6,12}(?!\w)|(?<!\w)\w{4,7}(?!\w)", text):
            if word.isprintable() and unicodedata.normalize("NFC", word) == word and len(encode(word)) > 2:
                words[word] = words.get(word, 0) + 1
    return sorted(words, key=lambda w: (-words[w], w))[:100]


def hash32(ids):
    hash = 0xCBF29CE484222325
    for byte in b"".join(struct.pack("<i", i) for i in ids):
        hash = (hash ^ byte) * 0x100000001B3 % 2**64
    return (hash ^ hash >> 32) & 0xFFFFFFFF


def main():
    django, project, out = sys.argv[1:]
    maker = Maker(django, project)
    merges = train(maker)
    seen, unique = set(), []
    for a, b in merges:  # two merges may make the same token; ids here are ranks, so the later one goes
        if a + b not in seen: unique.append((a, b))
        seen.add(a + b)
    texts = maker.texts()
    words = unreachable(texts, kimi(unique))
    with open(f"{out}/parity_texts.txt", "w", encoding="utf-8", newline="") as f:
        f.write("".join(t + END for t in texts))
    with open(f"{out}/parity_merges.txt", "w", encoding="utf-8") as f:
        characters = byte_characters()
        f.write("".join(f"{a} {b}\n" for a, b in unique))
        f.write("".join("".join(characters[b] for b in w.encode()) + "\n" for w in words))
    with open(f"{out}/parity_hashes.bin", "wb") as f:
        for encode in (qwen(QWEN2, unique), qwen(QWEN35, unique), kimi(unique, words)):
            f.write(struct.pack(f"<{len(texts)}I", *(hash32(encode(t)) for t in texts)))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes tests/data/tokenizer_golden.jsonl: what the Python library `tokenizers` makes of many texts.

    make_tokenizer_golden.py MODEL_DIRECTORY TEXT_FILE... > tokenizer_golden.jsonl

Lines are taken from the text files (English prose and source code were used); the rest is made here. Kinds of lines:
  {"variant", "patch", "exact"}   the model's tokenizer.json with this patch merged in, for the lines that follow;
                                  exact: decoding gives every text back
  {"text", "ids"}                 "plain": true where special tokens in the text are plain text
  {"text", "times", "count", "fnv"}  the text repeated; number of ids and FNV-1a of them (32-bit little-endian)
  {"chat", "reply", "ids"}        role and content of messages; ids of the rendered conversation
  {"bytes", "replaced"}           bytes and their text by Python's errors="replace"
"""
import json
import random
import struct
import sys
import tempfile

from tokenizers import Tokenizer

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

SPACES = [" ", "  ", "   ", "    ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\v", "\f", "\x1c",
          "\x85", "\xa0",
          "\u1680", "\u180e", "\u2003", "\u200b", "\u2028", "\u3000", "\ufeff"]
PIECES = ["'s", "'S", "'\u017f", "'LL", "'ve", "don't", "x", "the", " the", "Hello", "_", "-", "...", "$",
          "\\", "{}", "();", "1",
          "123", "2024", "3.14", "\u0663", "\xbd", "\u2167", "\xb2", "caf\xe9", "ne\u0301", "e\u0301", "a\u0323\u0307",
          "q\u0307\u0323", "\u0300", "\u0345", "\uac00", "\u1100\u1161\u11a8", "\uac01", "\u0928\u093f",
          "\u0e44\u0e17\u0e22",
          "\u05e2\u05b4\u05d1\u05b0\u05e8", "\u0627\u0644\u0639\u064e\u0631\u064e\u0628", "\u6f22\u5b57",
          "\u3072\u3089\u304c\u306a",
          "\u30ab\u3099", "\u30ac", "\u212b", "\u2126", "\ufb01", "\ufdfa", "\u0340", "\u0958", "\U0001d15e",
          "\u01c5", "\u02b0",
          "\xaa", "\ue000", "\U0010ffff", "\u0417\u0434\u0440\u0430\u0432\u0441\u0442\u0432\u0443\u0439",
          "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\U0001f44b\U0001f3fd", "\u2764\ufe0f",
          "\x00", "\x01", "\x07", "\x1b[0m", "\x7f"]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<|im_", "_end|>",
           "<|im_end|", "<<|im_end|>>"]
STRIPPED = ["a \t<think> b", "a</think> \u3000\n b", "<think> <think></think>  </think>", "a  the  the b",
            "x\xe9 n\xe9</think>\n\nx",
            "<think>x  <think>", "</think>      x", "ne\u0301n\xe9"]


def added(id, content, **flags):
    token = dict(id=id, content=content, single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
    return {**token, **flags}


def variants(base):
    qwen2 = base["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    qwen35 = qwen2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")
    llama3 = qwen2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
    assert qwen2 != qwen35 != llama3
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}

    def split(*patterns):
        steps = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns]
        return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps + [byte_level]}}

    tokens = [dict(t) for t in base["added_tokens"]]
    tokens[3]["lstrip"] = tokens[4]["rstrip"] = True
    tokens += [added(8192, "<tool>"), added(8193, "  "), added(8194, "    "), added(8195, "n\xe9", normalized=True),
               added(8196, "n" + "e\u0301"), added(8197, "<think>x"),
               added(8198, " the ", lstrip=True, rstrip=True, normalized=True), added(8199, "\n\n", special=True)]
    return [
        ("plain", {}, True),
        ("qwen35", {"normalizer": {"type": "NFC"}, **split(qwen35)}, False),
        ("llama3", {"model": {"ignore_merges": True}, **split(llama3)}, True),
        ("gpt2", {"pre_tokenizer": {**byte_level, "use_regex": True}}, True),
        ("unsplit", {"pre_tokenizer": byte_level}, True),
        ("two splits", split(r"\p{N}{1,3}", r"[\u4e00-\u9fa5\u3040-\u30ff]+".encode().decode("unicode_escape"),
        qwen2), True),
        ("empty pattern", split(""), True),
        ("lines", split(r"(?=x)|^\S+$|a.|\s\S"), True),
        ("added", {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
        "added_tokens": tokens}, False),
    ]


def merged(base, patch):
    out = dict(base)
    for key, value in patch.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = merged(out[key], value) if both else value
    return out


def fnv(ids):
    hash = 0xCBF29CE484222325
    for byte in b"".join(struct.pack("<i", i) for i in ids):
        hash = (hash ^ byte) * 0x100000001B3 % 2**64
    return "%016x" % hash


def emit(**line):
    print(json.dumps(line, ensure_ascii=False, separators=(",", ":")))


class Maker:
    def __init__(self, corpora):
        self.random = random.Random(20240607)
        self.corpora = corpora

    def line(self):
        text = self.random.choice(self.corpora)
        at = self.random.randrange(len(text))
        return text[at : at + self.random.randrange(1, 52)]

    def pieces(self):
        kinds = [SPACES, PIECES, PIECES, SPECIAL] if self.random.random() < 0.4 else [SPACES, PIECES]
        return "".join(self.random.choice(self.random.choice(kinds)) for _ in range(self.random.randrange(1, 9)))

    def points(self):
        tops = [0x80, 0x800, 0x3000, 0x11000]  # stays below the blocks that newer Unicode versions fill
        points = (self.random.randrange(self.random.choice(tops)) for _ in range(self.random.randrange(1, 8)))
        return "".join(chr(c) for c in points if not 0xD800 <= c < 0xE000)

    def chat(self):
        roles = ["system", "user", "assistant", "tool", ""]
        content = lambda: self.random.choice([self.line, self.pieces])()
        messages = [[self.random.choice(roles), content()] for _ in range(self.random.randrange(0, 4))]
        return [[r, "".join(c for c in text if c != "\0")] for r,
        text in messages if not any(s in text for s in SPECIAL)]


def main():
    directory, corpora = sys.argv[1], [open(p, encoding="utf-8").read() for p in sys.argv[2:]]
    base = json.load(open(directory + "/tokenizer.json", encoding="utf-8"))
    assert json.load(open(directory + "/tokenizer_config.json", encoding="utf-8"))["chat_template"] == CHAT_TEMPLATE
    make = Maker(corpora)

    for name, patch, exact in variants(base):
        emit(variant=name, patch=patch, exact=exact)
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            json.dump(merged(base, patch), file)
            file.flush()
            library = Tokenizer.from_file(file.name)

        def encode(text, plain=False):
            library.encode_special_tokens = plain
            return library.encode(text, add_special_tokens=False).ids

        first = name == "plain"
        texts = SPACES + PIECES + SPECIAL + [""] if first else []
        texts += STRIPPED if name == "added" else []
        texts += [make.line() for _ in range(530 if first else 12)]
        texts += [make.pieces() for _ in range(240 if first else 35)]
        texts += [make.points() for _ in range(60 if first else 8)]
        for text in texts:
            emit(text=text, ids=encode(text))
            if any(s in text for s in ("<|im_end|>", "think>", "\n\n" if name == "added" else "think>")):
                emit(text=text, plain=True, ids=encode(text, True))
        long = [("a", 5000), ("theing", 3000), ("ab ", 2000), (" ", 4097), ("\u6f22", 2000), ("e\u0301", 2000),
        ("9", 3001)]
        for text, times in long:
            ids = encode(text * times)
            emit(text=text, times=times, count=len(ids), fnv=fnv(ids))
        if not first:
            continue
        for i in range(60):
            chat = make.chat()
            reply = i % 3 != 0
            rendered = "".join("<|im_start|>%s\n%s<|im_end|>\n" % (r, c) for r, c in chat)
            emit(chat=chat, reply=reply, ids=encode(rendered + ("<|im_start|>assistant\n" if reply else "")))

    bytes_like = [0x41, 0x80, 0xBF, 0xC0, 0xC2, 0xDF, 0xE0, 0xA0, 0xE2, 0x82, 0xAC, 0xED, 0x9F, 0xEF, 0xF0,
                  0x90, 0x9F, 0x98, 0xF4, 0x8F,
                  0xF5, 0xFF, 0x20]
    for _ in range(150):
        b = [make.random.choice(bytes_like) for _ in range(make.random.randrange(1, 12))]
        emit(bytes=b, replaced=bytes(b).decode("utf-8", errors="replace"))


main()

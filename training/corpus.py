"""Build a training corpus of public-domain books and Python source: OUT/train0.txt.xz ..., heldout_books.txt,
heldout_code.txt.

usage: corpus.py OUT [--books FOLDER] [--code FOLDER] [--megabytes N]

Books are the plain texts of Project Gutenberg. With --books, every *.txt below a folder is taken (a mirror fetched as
https://www.gutenberg.org/policy/robot_access.html asks for: by rsync, not by a crawler); without it, the short list
BOOKS below is downloaded, one file every two seconds, which makes a corpus for trying things and no more. Gutenberg's
own header and licence are cut off. Code is CPython's standard library: --code, or that of the running interpreter,
without its tests. Documents are shuffled with a fixed seed and joined by <|endoftext|>; one of every 200 is held out.

The first tries were trained on 95 MB of this kind: 299 books and 401 files of the standard library.
"""
import argparse
import glob
import lzma
import os
import random
import sysconfig
import time
import urllib.request

URL = "https://www.gutenberg.org/cache/epub/{0}/pg{0}.txt"
BOOKS = [11, 16, 35, 36, 43, 45, 46, 55, 74, 76, 84, 98, 120, 158, 161, 174, 209, 219, 345, 768, 1184, 1232, 1260, 1342,
         1400, 1661, 2554, 2600, 2701, 2852, 3207, 4300, 5200]
BREAK = "<|endoftext|>"
PARTS = 8


def strip(text):
    """The book between Gutenberg's START and END lines."""
    begin, end = text.find("*** START OF"), text.find("*** END OF")
    if begin >= 0:
        text = text[text.find("\n", begin) + 1:end if end > begin else None]
    return text.replace("\r\n", "\n").replace(BREAK, "").strip()


def read(path):
    with open(path, encoding="utf-8", errors="ignore") as f:
        return f.read()


def books(folder):
    if folder:
        return [strip(read(p)) for p in sorted(glob.glob(folder + "/**/*.txt", recursive=True))]
    out = []
    for number in BOOKS:
        with urllib.request.urlopen(URL.format(number), timeout=60) as reply:
            out.append(strip(reply.read().decode("utf-8", errors="ignore")))
        time.sleep(2)
    return out


def code(folder):
    folder = folder or sysconfig.get_paths()["stdlib"]
    paths = [p for p in sorted(glob.glob(folder + "/**/*.py", recursive=True))
             if not {"test", "tests", "site-packages", "idlelib", "lib2to3"} & set(p.split(os.sep))]
    return [t for t in map(read, paths) if len(t) > 2000]


def held_out(documents, name, out, rng):
    rng.shuffle(documents)
    count = max(1, len(documents) // 200)
    with open(f"{out}/heldout_{name}.txt", "w") as f:
        f.write("\n".join(documents[:count]))
    return documents[count:]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--books")
    p.add_argument("--code")
    p.add_argument("--megabytes", type=float, default=95, help="of text; code comes first, books fill the rest")
    a = p.parse_args()
    os.makedirs(a.out, exist_ok=True)
    rng = random.Random(1)
    texts = held_out(code(a.code), "code", a.out, rng)
    room = a.megabytes * 1e6 - sum(map(len, texts))
    for book in held_out(books(a.books), "books", a.out, rng):
        if len(book) <= room:
            texts.append(book)
            room -= len(book)
    rng.shuffle(texts)
    whole = BREAK.join(texts)
    step = len(whole) // PARTS + 1
    for i in range(PARTS):
        with lzma.open(f"{a.out}/train{i}.txt.xz", "wb", preset=9) as f:
            f.write(whole[i * step:(i + 1) * step].encode())
    print(len(texts), "documents,", len(whole), "characters")


if __name__ == "__main__":
    main()

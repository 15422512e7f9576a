"""Token shards for training: a folder of NAME-NNN.npy, written by worker processes while training already reads them.

usage: data.py CORPUS FOLDER TOKENIZER.json [--workers N] [--first N] [--mixes a:60,b:20]

CORPUS holds train*.txt.xz (corpus.py builds it). "text" shards are the corpus, each mix of tasks.MIXES has shards of
its own. A token takes the low 15 bits of a uint16, the top bit says that it belongs to an answer. NAME-NNN.starts.npy
lists where problems begin. The tokenizer is made by tokenizer.py, once; all models share it.
"""
import argparse
import glob
import lzma
import os
import random
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pool

import numpy as np

import tasks

ANSWER = 1 << 15
TEXT_CHARS, TASK_CHARS = 4_000_000, 4_000_000  # of one shard
work = {}  # what the workers inherit: text, tokenizer, folder


def read_corpus(folder):
    def read(path):
        with lzma.open(path, "rb") as f:
            return f.read()

    with ThreadPoolExecutor() as threads:  # lzma releases the lock
        parts = threads.map(read, sorted(glob.glob(folder + "/train*.txt.xz")))
    return b"".join(parts).decode(errors="ignore")


def save(name, tokens, starts):
    path = f"{work['folder']}/{name}"
    np.save(path + ".starts.npy", starts)
    np.save(path + ".tmp.npy", tokens)
    os.rename(path + ".tmp.npy", path + ".npy")  # whole or absent


def encode_problem(tokenizer, encoding):
    ids = np.array(encoding.ids, dtype=np.uint16)
    begin = np.flatnonzero(ids == tokenizer.token_to_id("<|im_start|>"))[1] + work["header"]
    end = np.flatnonzero(ids == tokenizer.token_to_id("<|im_end|>"))[1]
    ids[begin:end + 1] |= ANSWER
    return ids


def make(job):
    kind, number = job
    tokenizer, name = work["tokenizer"], f"{kind}-{number:03d}"
    if kind == "text":
        text = work["text"][number * TEXT_CHARS:(number + 1) * TEXT_CHARS]
        pieces = [text[i:i + 200_000] for i in range(0, len(text), 200_000)]
        ids = [np.array(e.ids, dtype=np.uint16) for e in tokenizer.encode_batch(pieces)]
        return save(name, np.concatenate(ids), np.zeros(1, dtype=np.int64))
    rng = random.Random(name)
    problems, size = [], 0
    while size < TASK_CHARS:
        problems.append(tasks.sample(rng, work["text"], kind))
        size += len(problems[-1])
    ids = [encode_problem(tokenizer, e) for e in tokenizer.encode_batch(problems)]
    starts = np.cumsum([0] + [len(i) for i in ids[:-1]])
    save(name, np.concatenate(ids), starts.astype(np.int64))


def main():
    from tokenizers import Tokenizer
    p = argparse.ArgumentParser()
    p.add_argument("corpus")
    p.add_argument("folder")
    p.add_argument("tokenizer")
    p.add_argument("--workers", type=int, default=os.cpu_count())
    p.add_argument("--first", type=int, default=0, help="number of the first of them: others hold other problems")
    p.add_argument("--mixes", default=",".join(f"{mix}:30" for mix in tasks.MIXES), help="and their shards")
    a = p.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"], os.environ["RAYON_NUM_THREADS"] = "false", "1"
    os.makedirs(a.folder, exist_ok=True)
    tokenizer = Tokenizer.from_file(a.tokenizer)
    header = len(tokenizer.encode("<|im_start|>assistant\n").ids)
    work.update(text=read_corpus(a.corpus), tokenizer=tokenizer, folder=a.folder, header=header)
    texts = (len(work["text"]) + TEXT_CHARS - 1) // TEXT_CHARS
    mixes = [(mix, int(count)) for mix, count in (m.split(":") for m in a.mixes.split(","))]
    jobs = []
    for i in range(max([texts] + [count for _, count in mixes])):  # a little of everything first
        jobs += [("text", i)] if i < texts else []
        jobs += [(mix, a.first + i) for mix, count in mixes if i < count]
    with Pool(a.workers) as pool:
        for _ in pool.imap_unordered(make, jobs):
            pass


if __name__ == "__main__":
    main()

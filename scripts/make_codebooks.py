#!/usr/bin/env python3
"""Writes the codebooks of the state codecs: src/state/lloyd_max.h (TurboQuant) and src/state/kmeans.h (KVQuant).

Both are symmetric, so the positive half is stored. Plain Python, no packages; takes a minute at most and always writes
the same files.

    python3 scripts/make_codebooks.py
"""
import bisect
import itertools
import math
import pathlib
import random

STATE = pathlib.Path(__file__).resolve().parent.parent / "src" / "state"
BITS = (4, 6, 8)


def lloyd_max(half):
    """The positive `half` levels of the codebook of 2 * half levels with the least mean square error on N(0, 1):
    every level is the mean of the density between its two thresholds, every threshold the middle of two levels."""
    density = lambda x: math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    # the density of the best levels is near the cube root of the normal density, which is N(0, 3)
    level, at = [], 0.0
    for i in range(half):
        share = (i + 0.5) / half
        while math.erf(at / math.sqrt(6)) < share:
            at += 1e-4
        level.append(at)
    for _ in range(200000):
        edge = [0.0] + [(a + b) / 2 for a, b in zip(level, level[1:])] + [math.inf]
        upper = [math.erfc(e / math.sqrt(2)) / 2 for e in edge]
        height = [density(e) for e in edge]
        new = [(height[i] - height[i + 1]) / (upper[i] - upper[i + 1]) for i in range(half)]
        moved = max(abs(a - b) for a, b in zip(new, level))
        level = new
        if moved < 1e-13:
            break
    return level


def heavy_tailed_rows(rows, columns, outliers):
    """|x| / max|x| of rows without their `outliers` largest values, sorted. Half of the rows are normal numbers with a
    log-normal factor (sigma 0.7) per value, half are Student t with 4 degrees of freedom."""
    rng = random.Random(20240607)
    sample = []
    for row in range(rows):
        x = []
        for _ in range(columns):
            z = abs(rng.gauss(0, 1))
            if row % 2 == 0:
                z *= math.exp(0.7 * rng.gauss(0, 1))
            else:
                z /= math.sqrt(-math.log((1 - rng.random()) * (1 - rng.random())) / 2)
            x.append(z)
        x.sort()
        rest = x[: columns - outliers]
        sample += [z / rest[-1] for z in rest]
    sample.sort()
    return sample


def k_means(sample, half, fixed_end):
    """Lloyd's algorithm on a sorted sample of [0, 1]; `fixed_end` keeps the last level at 1."""
    n = len(sample)
    total = [0.0, *itertools.accumulate(sample)]
    level = [(sample[int((i + 0.5) * n / half)] + (i + 0.5) / half) / 2 for i in range(half)]
    for _ in range(5000):
        if fixed_end:
            level[-1] = 1.0
        edge = [0] + [bisect.bisect_right(sample, (a + b) / 2) for a, b in zip(level, level[1:])] + [n]
        new = [(total[b] - total[a]) / (b - a) if b > a else old for a, b, old in zip(edge, edge[1:], level)]
        if fixed_end:
            new[-1] = 1.0
        moved = max(abs(a - b) for a, b in zip(new, level))
        level = new
        if moved < 1e-9:
            break
    return level


def array(name, level):
    words = [f"{x:.9g}" for x in level]
    words = [w if "." in w else w + ".0" for w in words]
    lines = [", ".join(f"{w}f" for w in words[i : i + 8]) for i in range(0, len(words), 8)]
    return f"static const float {name}[{len(level)}] = {{\n    " + ",\n    ".join(lines) + ",\n};\n"


def header(path, guard, comment, arrays):
    text = comment + f"#ifndef {guard}\n#define {guard}\n\n/* clang-format off */\n"
    text += "\n".join(arrays) + "/* clang-format on */\n\n#endif\n"
    (STATE / path).write_text(text)


header(
    "lloyd_max.h",
    "STATE_LLOYD_MAX_H",
    """/* state/lloyd_max.h: the positive halves of the Lloyd-Max codebooks of 16, 64 and 256 levels for N(0, 1): of all
 * codebooks of their size the ones with the least mean square error. Written by scripts/make_codebooks.py; included by
 * rotated.h. */
""",
    [array(f"lloyd_max_{bits}", lloyd_max(2 ** (bits - 1))) for bits in BITS],
)

rows = heavy_tailed_rows(4096, 128, 2)
header(
    "kmeans.h",
    "STATE_KMEANS_H",
    """/* state/kmeans.h: the positive halves of k-means codebooks of 16, 64 and 256 levels for |x| / max|x| of the rows of a
 * state, and the same with the last level fixed at 1. Trained on 4,096 synthetic rows of 128 values without their two
 * largest: half of them normal numbers with a log-normal factor (sigma 0.7) per value, half Student t with 4 degrees of
 * freedom. The KVQuant paper trains one per model. Written by scripts/make_codebooks.py; included by kvquant.h. */
""",
    [array(f"kmeans_{bits}", k_means(rows, 2 ** (bits - 1), False)) for bits in BITS]
    + [array(f"kmeans_ends_{bits}", k_means(rows, 2 ** (bits - 1), True)) for bits in BITS],
)

#!/usr/bin/env python3
"""Writes idem_matrix.f32: the 128 x 128 heavy-tailed matrix of the idempotence tests, float32, little-endian, row-major.
Normal numbers, with log-normal factors per row (sigma 1) and per column (sigma 0.7). Needs numpy.

    python3 tests/data/make_idem_matrix.py
"""
import pathlib

import numpy as np

D = 128
rng = np.random.default_rng(3)
X = rng.standard_normal((D, D)) * np.exp(rng.standard_normal((D, 1))) * np.exp(0.7 * rng.standard_normal((1, D)))
X.astype("<f4").tofile(pathlib.Path(__file__).with_name("idem_matrix.f32"))

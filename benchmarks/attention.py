"""Causal ALiBi attention: ours beside what people use in torch and transformers."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

import ntk_alibi as na
from benchmarks import document
from benchmarks.peak import fma_probe
from ntk_alibi.torch.sdpa import causal_linear_attention

HEADS = 16
SAMPLED_ROWS = 32  # whose error is measured, evenly spaced

#: Masks of all pairs and transformers' own formula only up to here: they need gigabytes.
LONGEST_WITH_A_MATRIX = 4096

DECODE_KEYS, DECODE_DIM = 131072, 64

BASELINE = "torch SDPA, causal, *no bias*"


@dataclass(frozen=True)
class Case:
    """One problem, and the candidates for it."""

    length: int
    head_dim: int
    dtype: torch.dtype
    scaling: na.Scaling | None = None

    def __str__(self) -> str:
        scaling = "" if self.scaling is None else f", {self.scaling}"
        return f"L = {self.length}, D = {self.head_dim}, {self.dtype}{scaling}"


CASES = [
    Case(512, 64, torch.float32),
    Case(2048, 64, torch.float32),
    Case(2048, 128, torch.float32),
    Case(4096, 64, torch.float32),
    Case(4096, 64, torch.bfloat16),
    Case(8192, 64, torch.float32),
    Case(16384, 64, torch.float32),
    Case(16384, 64, torch.float32, na.NTK(4.0)),
]


def run(rounds: int) -> str:
    """All tables as Markdown."""
    head = (
        f"{document.machine()}; B = 1, H = {HEADS}, unit-variance inputs; medians of {rounds} "
        "interleaved rounds; operations are counted as 2 H D L (L + 1), skipped or not, and the "
        "share is of the most multiply-adds measured in the same rounds. Errors are the largest "
        f"against float64 over {SAMPLED_ROWS} rows."
    )
    decoding = [decode_table(dtype, rounds) for dtype in (torch.float32, torch.bfloat16)]
    return "\n\n".join([head, *(table(case, rounds) for case in CASES), *decoding])


def table(case: Case, rounds: int) -> str:
    """One case."""
    shape = (1, HEADS, case.length, case.head_dim)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(shape, generator=generator).to(case.dtype) for _ in range(3))
    slopes = torch.from_numpy(np.asarray(na.alibi_slopes(HEADS, case.scaling)))
    calls = candidates(case, query, key, value, slopes)
    probe = fma_probe()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    peaks = []
    errors = {}
    for number in range(rounds + 1):
        gc.collect()
        peaks.append(probe(torch.get_num_threads()))
        for name, call in calls.items():
            begin = time.perf_counter()
            result = call()
            elapsed = time.perf_counter() - begin
            if number:
                seconds[name].append(elapsed)
            else:
                errors[name] = error(case, query, key, value, slopes, result, name)
            del result
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    peak = max(peaks)
    operations = 2.0 * HEADS * case.head_dim * case.length * (case.length + 1)
    rows = [
        [
            name,
            f"{1e3 * s:.1f}",
            f"{operations / s / 1e9:.0f}",
            f"{100 * operations / s / peak:.0f} %",
            f"{medians[BASELINE] / s:.2f}",
            errors[name],
        ]
        for name, s in medians.items()
    ]
    header = ["", "ms", "GFLOP/s", "of peak", "speed / no bias", "error"]
    title = f"{case}; measured peak {peak / 1e9:.0f} GFLOP/s"
    return f"{title}\n\n{document.table(header, rows)}"


def decode_table(dtype: torch.dtype, rounds: int) -> str:
    """One query against a long cache, with the processor's caches flushed before each call."""
    query = torch.randn((1, HEADS, 1, DECODE_DIM)).to(dtype)
    key, value = (torch.randn((1, HEADS, DECODE_KEYS, DECODE_DIM)).to(dtype) for _ in range(2))
    bias, stretched = na.ALiBi(HEADS), na.ALiBi(HEADS, na.NTK(4.0))
    norms = na.KeyNorms().update(key)
    slopes = torch.from_numpy(np.asarray(na.alibi_slopes(HEADS)))
    columns = torch.arange(DECODE_KEYS) - (DECODE_KEYS - 1)
    row = (slopes[:, None, None] * columns).to(dtype)[None]
    scale = 1.0 / math.sqrt(DECODE_DIM)
    peer = "torch SDPA, bias row of keys"
    calls: dict[str, Callable[[], object]] = {
        "reading keys and values (`sum`)": lambda: [
            cache.view(torch.float32).sum() for cache in (key, value)
        ],
        peer: lambda: F.scaled_dot_product_attention(query, key, value, attn_mask=row),
        "torch, products and softmax": lambda: (
            torch.softmax((query @ key.transpose(2, 3)) * scale + row, -1) @ value
        ),
        "ours, every key": lambda: na.attention(query, key, value, bias, skip_tolerance=None),
        "ours, 0.0": lambda: na.attention(query, key, value, bias),
        "ours, 0.0, `KeyNorms`": lambda: na.attention(query, key, value, bias, key_norms=norms),
        "ours, NTK a=4, 0.0, `KeyNorms`": lambda: na.attention(
            query, key, value, stretched, key_norms=norms
        ),
    }
    flush = torch.zeros(2**26)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            flush.add_(1.0)
            begin = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begin)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    size = 2 * key.numel() * key.itemsize
    rows = [
        [name, f"{1e3 * s:.2f}", f"{size / s / 1e9:.1f}", f"{medians[peer] / s:.1f}"]
        for name, s in medians.items()
    ]
    title = f"One query, {DECODE_KEYS} keys, D = {DECODE_DIM}, {dtype}, cold caches"
    header = ["", "ms", "GB/s of all keys and values", "speed / SDPA"]
    return f"{title}\n\n{document.table(header, rows)}"


def candidates(
    case: Case,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slopes: torch.Tensor,
) -> dict[str, Callable[[], torch.Tensor]]:
    """What is compared."""
    length = case.length
    scale = 1.0 / math.sqrt(case.head_dim)
    bias = na.ALiBi(HEADS, case.scaling)
    columns = torch.arange(length) - (length - 1)
    row = (slopes[:, None, None] * columns).to(case.dtype)[None]

    def ours(tolerance: float | None) -> Callable[[], torch.Tensor]:
        return lambda: na.attention(query, key, value, bias, skip_tolerance=tolerance)

    calls: dict[str, Callable[[], torch.Tensor]] = {
        BASELINE: lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True),
        "ours, every block": ours(None),
        "ours, `skip_tolerance=0.0`": ours(0.0),
        "ours, `skip_tolerance=2**-9`": ours(2.0**-9),
        "torch SDPA, causal, bias row of keys": lambda: F.scaled_dot_product_attention(
            query, key, value, attn_mask=row, is_causal=True
        ),
        "torch SDPA, strided relative bias (`na.patch`)": lambda: causal_linear_attention(
            query, key, value, slopes[None, :, None], scale=scale
        ),
    }
    if length <= LONGEST_WITH_A_MATRIX:
        mask = torch.empty((1, HEADS, length, length), dtype=case.dtype)
        bias.tensor(length, length, out=mask)
        calls["torch SDPA, mask of all pairs, made before"] = lambda: (
            F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        )
        calls["transformers' BLOOM formula, eager"] = lambda: eager(query, key, value, slopes)
    return calls


def eager(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slopes: torch.Tensor
) -> torch.Tensor:
    """What BloomAttention does: absolute bias in the inputs' dtype, scores of all pairs."""
    length = query.shape[2]
    alibi = (slopes[:, None, None] * torch.arange(length)).to(query.dtype)
    scores = alibi.baddbmm(query[0], key[0].transpose(1, 2), alpha=1 / math.sqrt(query.shape[3]))
    future = torch.ones((length, length), dtype=torch.bool).triu(1)
    scores = scores.masked_fill(future, torch.finfo(query.dtype).min)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value[0])[None]


def error(
    case: Case,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slopes: torch.Tensor,
    result: torch.Tensor,
    name: str,
) -> str:
    """The largest error of sampled rows, as text; empty for candidates without the bias."""
    if name == BASELINE:
        return ""
    rows = np.linspace(0, case.length - 1, SAMPLED_ROWS).astype(int)
    distance = rows[:, None].astype(float) - np.arange(case.length)
    bias = np.where(distance >= 0, -slopes.double().numpy()[:, None, None] * distance, -np.inf)
    q, k, v = (x.double().numpy() for x in (query[:, :, rows], key, value))
    expected, _ = na.reference.attention(q, k, v, bias)
    return f"{np.abs(result[:, :, rows].double().numpy() - expected).max():.1e}"

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
SAMPLED_ROWS = 32  # the last ones, whose error is measured

#: Masks of all pairs and transformers' own formula only up to here: they need gigabytes.
LONGEST_WITH_A_MATRIX = 4096

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
        "share is of the multiply-adds measured in the same rounds. Errors are the largest against "
        "float64 over the last rows."
    )
    return "\n\n".join([head, *(table(case, rounds) for case in CASES)])


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
    peak = statistics.median(peaks)
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
    """The largest error of the last rows, as text; empty for candidates without the bias."""
    if name == BASELINE:
        return ""
    distance = na.reference.distances(SAMPLED_ROWS, case.length)
    bias = np.where(distance >= 0, -slopes.double().numpy()[:, None, None] * distance, -np.inf)
    last = query[:, :, -SAMPLED_ROWS:]
    q, k, v = (x.double().numpy() for x in (last, key, value))
    expected, _ = na.reference.attention(q, k, v, bias)
    return f"{np.abs(result[:, :, -SAMPLED_ROWS:].double().numpy() - expected).max():.1e}"

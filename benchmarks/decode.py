"""Benchmark of decoding: one query against a long key-value cache, bounded by memory speed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

import ntk_alibi as na
from benchmarks import peak
from benchmarks.prefill_results import milliseconds
from benchmarks.problems import HEADS, dtype_name
from ntk_alibi.cli.timing import Call, interleaved
from ntk_alibi.evaluation.report.markdown import table
from ntk_alibi.methods import method_name

KEYS = (8192, 32768, 131072)
HEAD_DIM = 64
COMPARED_HEADS = 4  # evenly spaced heads whose error is measured
STRETCHED = na.NTK(4.0)

PEER = "torch SDPA, bias row of keys"
INT8 = "ours, int8, every key"

SECONDS_PER_WARM_TURN = 0.05
FLUSHED_NUMBERS = 2**26  # 256 MiB, more than the processor caches


def measure(keys: int, dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    """Return median seconds with cold and with warm caches, errors, and the memory's speed."""
    random = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn((1, HEADS, length, HEAD_DIM), generator=random).to(dtype)
        for length in (1, keys, keys)
    )
    calls = candidates(query, key, value)
    errors = {name: _error(name, call, query, key, value) for name, call in calls.items()}
    flushed = torch.zeros(FLUSHED_NUMBERS)
    runtimes = {name: name.partition(",")[0] for name in calls}
    cold = interleaved(calls, rounds, 0.0, runtimes=runtimes, before_turn=lambda: flushed.add_(1.0))
    warm = interleaved(calls, rounds, SECONDS_PER_WARM_TURN, runtimes=runtimes)
    return {
        "keys": keys,
        "head_dim": HEAD_DIM,
        "heads": HEADS,
        "dtype": dtype_name(dtype),
        "threads": na.info()["threads"],
        "bytes": 2 * key.numel() * key.itemsize,
        "read_peak": peak.read_probe()(na.info()["threads"]),
        "cold": cold,
        "warm": warm,
        "errors": errors,
    }


def estimate(keys: int, rounds: int) -> float:
    """Return roughly how many seconds `measure` takes."""
    return 1.0 + keys / 2**14 + rounds * (1.5 + keys / 2**17)


def candidates(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> dict[str, Call]:
    """Return the calls to compare; torch's bias is a float32 row, which is exact enough."""
    keys, scale = key.shape[2], HEAD_DIM**-0.5
    norms = na.KeyNorms().update(key)
    rows = na.QuantizedRows.of(key), na.QuantizedRows.of(value)
    slopes = torch.from_numpy(np.asarray(na.alibi_slopes(HEADS)))
    row = (slopes[:, None, None] * torch.arange(1 - keys, 1))[None]
    bias, stretched = na.ALiBi(HEADS), na.ALiBi(HEADS, STRETCHED)

    def products() -> torch.Tensor:
        scores = (query @ key.transpose(2, 3)).float() * scale + row
        return torch.softmax(scores, dim=-1).to(value.dtype) @ value

    def ours(bias: na.ALiBi, **options: Any) -> Call:
        return lambda: na.attention(query, key, value, bias, **options)

    return {
        PEER: lambda: F.scaled_dot_product_attention(query, key, value, attn_mask=row),
        "torch, products and softmax": products,
        "ours, every key": ours(bias, skip_tolerance=None),
        INT8: lambda: na.attention(query, *rows, bias, skip_tolerance=None),
        "ours, 0.0": ours(bias),
        "ours, 0.0, `KeyNorms`": ours(bias, key_norms=norms),
        f"ours, {method_name(STRETCHED)}, 0.0, `KeyNorms`": ours(stretched, key_norms=norms),
    }


def markdown(result: dict[str, Any]) -> str:
    """Return the table of one result."""
    header = ["", "cold, ms", "GB/s", "of reading", "speed / SDPA", "warm, ms", "speed / SDPA"]
    rows = [_row(result, name) for name in result["cold"]]
    title = (
        f"**{result['keys']} keys, {result['dtype']}, H = {result['heads']}, "
        f"D = {result['head_dim']}, {result['threads']} threads**; memory is read with "
        f"{result['read_peak'] / 1e9:.1f} GB/s"
    )
    return f"{title}\n\n{table([*header, 'error'], rows)}"


def _row(result: dict[str, Any], name: str) -> list[str]:
    cold, warm = result["cold"][name], result["warm"][name]
    row_bytes = result["bytes"] / (2 * result["heads"] * result["keys"])
    share = (result["head_dim"] + 4) / row_bytes if name == INT8 else 1.0
    speed = share * result["bytes"] / cold
    return [
        name,
        milliseconds(cold),
        f"{speed / 1e9:.1f}",
        f"{100 * speed / result['read_peak']:.0f} %",
        f"{result['cold'][PEER] / cold:.1f}",
        milliseconds(warm),
        f"{result['warm'][PEER] / warm:.1f}",
        f"{result['errors'][name]:.1e}",
    ]


def _error(
    name: str, call: Call, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> float:
    """Return the largest error against float64 over `COMPARED_HEADS` heads."""
    heads = slice(None, None, HEADS // COMPARED_HEADS)
    scaling = STRETCHED if method_name(STRETCHED) in name else None
    slopes = np.asarray(na.alibi_slopes(HEADS, scaling))[heads].astype(np.float64)
    bias = slopes[:, None, None] * np.arange(1 - key.shape[2], 1)
    q, k, v = (part[:, heads].double().numpy() for part in (query, key, value))
    expected, _ = na.reference.attention(q, k, v, bias)
    result = call()
    assert isinstance(result, torch.Tensor)
    return float(np.abs(result[:, heads].double().numpy() - expected).max())

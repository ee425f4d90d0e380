"""Candidates of the attention benchmark: ours, torch's and transformers'.

Masks, bias rows and extra channels are made before the call, so their construction is not timed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

import ntk_alibi as na
from benchmarks.problems import Case, Problem
from benchmarks.reversed_sdpa import causal_linear_attention
from ntk_alibi.cli.timing import Call

#: A peer is left out where a call takes more seconds or bytes than these.
SECONDS, BYTES = 3.0, 4e9


@dataclass(frozen=True)
class Candidate:
    """One way to compute causal ALiBi attention.

    Attributes:
        name: name in the tables.
        prepare: makes the call for a problem.
        output: converts the result of the call to a tensor of the query's shape.
        runtime: library whose thread pool it uses.
        modules: modules that it needs; it is left out if one is missing.
        dtypes: dtypes of the inputs that it supports.
        cost: rough time of a call, relative to torch SDPA without a bias; used for estimates, and
            to leave out calls that would be too slow.
        bytes_per_pair: bytes that it allocates for each pair of query and key.
        set_up: seconds that preparation and the first, compiling call take.
        shortest: length of the shortest problem for which it is prepared.
        seconds: it is left out where a call takes longer.
        biased: whether it computes the bias; if not, its error is not measured.
    """

    name: str
    prepare: Callable[[Problem], Call]
    output: Callable[[Any, Problem], torch.Tensor] = lambda result, _: result
    runtime: str = "torch"
    modules: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
    cost: float = 1.0
    bytes_per_pair: int = 0
    set_up: float = 0.0
    shortest: int = 1
    seconds: float = SECONDS
    biased: bool = True

    def importable(self) -> bool:
        """Return whether its modules are installed."""
        return all(importlib.util.find_spec(name) for name in self.modules)

    def fits(self, case: Case, baseline_seconds: float) -> bool:
        """Return whether it supports the case within its limits of time and memory."""
        return (
            self.importable()
            and case.dtype in self.dtypes
            and case.length >= self.shortest
            and self.cost * baseline_seconds <= self.seconds
            and self.bytes_per_pair * case.pairs <= BYTES
        )


def _ours(tolerance: float | None) -> Callable[[Problem], Call]:
    def prepare(problem: Problem) -> Call:
        inputs = problem.inputs
        bias = problem.bias
        return lambda: na.attention(*inputs, bias, skip_tolerance=tolerance)

    return prepare


def no_bias(problem: Problem) -> Call:
    """Call torch's kernel without a bias, as a baseline of its speed: an easier problem."""
    inputs = problem.inputs
    return lambda: F.scaled_dot_product_attention(*inputs, is_causal=True)


def key_row(problem: Problem) -> Call:
    """Pass the bias as one row of keys; softmax cancels the query's term.

    The row is float32 for inputs of any dtype: in bfloat16, positions would collide.
    """
    inputs = problem.inputs
    positions = torch.arange(problem.length) - (problem.length - 1)
    row = (problem.slopes[:, None, None] * positions)[None]
    return lambda: F.scaled_dot_product_attention(*inputs, attn_mask=row, is_causal=True)


def fold(problem: Problem) -> Call:
    """Compute the bias row in extra channels: slope / scale in the query, position in the key.

    Each number is split into parts that the dtype represents, so that bfloat16 is as exact as
    float32.
    """
    positions = torch.arange(1 - problem.length, 1, dtype=torch.float32)
    slope_parts = _parts(problem.slopes / problem.scale, problem.case.dtype)
    key_parts = _parts(positions, problem.case.dtype)
    channels = [(slope, key) for slope in slope_parts for key in key_parts]
    query = torch.stack([slope for slope, _ in channels], dim=-1)[None, :, None]
    key = torch.stack([key for _, key in channels], dim=-1)[None, None]
    inputs = (
        torch.cat([problem.query, query.expand(*problem.query.shape[:3], -1)], dim=-1),
        torch.cat([problem.key, key.expand(*problem.key.shape[:3], -1)], dim=-1),
        # Values get as many channels: torch takes a slower kernel for unequal head sizes.
        F.pad(problem.value, (0, len(channels))),
    )
    head_dim, scale = problem.query.shape[3], problem.scale
    return lambda: F.scaled_dot_product_attention(*inputs, is_causal=True, scale=scale)[
        ..., :head_dim
    ]


def _parts(tensor: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """Split a float32 tensor into one or two of the dtype whose sum is nearly exact."""
    high = tensor.to(dtype)
    low = (tensor - high.float()).to(dtype)
    return [high, low] if low.any() else [high]


def strided(problem: Problem) -> Call:
    """Add the bias as a strided view of one row, to queries in reverse order."""
    inputs = problem.inputs
    slopes, scale = problem.slopes[None, :, None], problem.scale
    return lambda: causal_linear_attention(*inputs, slopes, scale=scale)


def dense_mask(problem: Problem) -> Call:
    """Pass the relative bias of all pairs as a mask."""
    inputs = problem.inputs
    mask = torch.empty((1, problem.heads, problem.length, problem.length))
    problem.bias.tensor(problem.length, problem.length, out=mask)
    return lambda: F.scaled_dot_product_attention(*inputs, attn_mask=mask)


def eager(problem: Problem) -> Call:
    """Compute as BloomAttention: an absolute bias in the inputs' dtype, scores of all pairs."""
    batch, _, length, _ = problem.query.shape
    dtype, scale = problem.case.dtype, problem.scale
    alibi = (problem.slopes[:, None, None] * torch.arange(length)).to(dtype).repeat(batch, 1, 1)
    future = torch.ones((length, length), dtype=torch.bool).triu(1)

    def call() -> torch.Tensor:
        query, key, value = (part.flatten(0, 1) for part in problem.inputs)
        scores = alibi.baddbmm(query, key.transpose(1, 2), alpha=scale)
        scores = scores.masked_fill(future, torch.finfo(dtype).min)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(dtype)
        return (weights @ value).view(problem.query.shape)

    return call


BASELINE = Candidate("torch SDPA, causal, *no bias*", no_bias, biased=False, seconds=float("inf"))
OURS = [
    Candidate(name, _ours(tolerance), runtime="ours", cost=cost, seconds=float("inf"))
    for name, tolerance, cost in [
        ("ours, every block", None, 0.8),
        ("ours, `skip_tolerance=0.0`", 0.0, 0.3),
        ("ours, `skip_tolerance=2**-9`", 2.0**-9, 0.25),
    ]
]
TORCH = [
    Candidate("torch SDPA, causal, bias row of keys", key_row, seconds=20.0),
    Candidate("torch SDPA, causal, slope in extra channels", fold, cost=1.1),
    Candidate("torch SDPA, strided relative bias", strided, cost=1.1),
    Candidate("torch SDPA, mask of all pairs", dense_mask, cost=2.0, bytes_per_pair=4),
    Candidate("transformers' BLOOM formula, eager", eager, cost=10.0, bytes_per_pair=8),
]

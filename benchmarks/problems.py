"""Problems on which candidates are compared: random or real inputs, and exact results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

import ntk_alibi as na
from ntk_alibi.evaluation.records.corpus import held_out_text
from ntk_alibi.models import load
from ntk_alibi.models.loading import nano_bloom_path

HEADS = 16
SAMPLED_ROWS = 32  # evenly spaced queries whose error is measured


@dataclass(frozen=True)
class Case:
    """Description of one problem. With `real`, its batch holds all layers of the nano BLOOM."""

    length: int
    head_dim: int
    dtype: torch.dtype
    threads: int
    scaling: na.Scaling | None = None
    real: bool = False

    @property
    def batch_and_heads(self) -> tuple[int, int]:
        """Batch size and number of heads; the layers of the nano BLOOM form the batch."""
        if self.real:
            config = nano_bloom_config()
            return config.n_layer, config.n_head
        return 1, HEADS

    @property
    def operations(self) -> float:
        """Number of multiplications and additions of all visible pairs, skipped or not."""
        batch, heads = self.batch_and_heads
        return 2.0 * batch * heads * self.head_dim * self.length * (self.length + 1)

    @property
    def pairs(self) -> int:
        """Number of pairs of query and key in all heads, masked ones included."""
        batch, heads = self.batch_and_heads
        return batch * heads * self.length**2


def dtype_name(dtype: torch.dtype) -> str:
    """Return NumPy's name of a torch dtype."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Problem:
    """Inputs of a case.

    Attributes:
        case: description of the problem.
        query: (batch, heads, length, head_dim), as key and value.
        key: as query.
        value: as query.
        slopes: (heads,) float32.
    """

    case: Case
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    slopes: torch.Tensor

    @property
    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value."""
        return self.query, self.key, self.value

    @property
    def scale(self) -> float:
        """Factor of the dot products, 1 / sqrt(head_dim)."""
        return 1.0 / math.sqrt(self.query.shape[3])

    @property
    def heads(self) -> int:
        """Number of heads of query, key and value."""
        return self.query.shape[1]

    @property
    def length(self) -> int:
        """Number of queries and of keys."""
        return self.query.shape[2]

    @property
    def bias(self) -> na.ALiBi:
        """Bias object of this package."""
        return na.ALiBi(self.heads, self.case.scaling)

    @cached_property
    def sampled_rows(self) -> NDArray[np.int64]:
        """Evenly spaced queries whose results are compared."""
        count = min(SAMPLED_ROWS, self.length)
        return np.linspace(0, self.length - 1, count).astype(np.int64)

    @cached_property
    def expected(self) -> NDArray[np.float64]:
        """Float64 results of the sampled rows, (batch, heads, rows, head_dim)."""
        distance = self.sampled_rows[:, None].astype(float) - np.arange(self.length)
        slopes = self.slopes.double().numpy()
        bias = np.where(distance >= 0, -slopes[:, None, None] * distance, -np.inf)
        query, key, value = (part.double().numpy() for part in self.inputs)
        output, _ = na.reference.attention(query[:, :, self.sampled_rows], key, value, bias)
        return output


@cache
def nano_bloom_config() -> Any:
    """Return the configuration of the nano BLOOM."""
    return transformers.BloomConfig.from_pretrained(nano_bloom_path())


def build(case: Case) -> Problem:
    """Return the inputs of a case, which are deterministic."""
    if case.real:
        inputs = nano_bloom_inputs(case.length, case.scaling)
    else:
        generator = torch.Generator().manual_seed(0)
        shape = (1, HEADS, case.length, case.head_dim)
        inputs = tuple(torch.randn(shape, generator=generator) for _ in range(3))
    query, key, value = (part.to(case.dtype) for part in inputs)
    slopes = torch.from_numpy(np.asarray(na.alibi_slopes(query.shape[1], case.scaling)))
    return Problem(case, query, key, value, slopes)


def nano_bloom_inputs(length: int, scaling: na.Scaling | None) -> tuple[torch.Tensor, ...]:
    """Return query, key and value of all nano BLOOM layers, (layers, heads, length, head_dim).

    The model reads held-out prose with the slopes of the scaling.
    """
    model: Any
    model, tokenizer, _ = load()
    chapters = itertools.islice(itertools.cycle(held_out_text()), 1 + length // 200)
    tokens = [token for chapter in chapters for token in tokenizer(chapter).input_ids]
    states: list[tuple[torch.Tensor, ...]] = []
    for layer in model.transformer.h:
        attention = layer.self_attention
        attention.query_key_value.register_forward_hook(
            lambda _, __, fused, attention=attention: states.append(attention._reshape(fused))
        )
    with torch.no_grad(), na.patch(model, scaling):
        model.transformer(torch.tensor([tokens[:length]]))
    return tuple(torch.cat(parts).contiguous() for parts in zip(*states, strict=True))


def error(problem: Problem, result: torch.Tensor) -> float:
    """Return the largest error of the sampled rows against float64."""
    rows = result[:, :, problem.sampled_rows].double().numpy()
    return float(np.abs(rows - problem.expected).max())


def blocks_read(problem: Problem, tolerance: float) -> float:
    """Return the share of visible key blocks that `na.attention` reads."""
    _, stats = na.attention(
        *problem.inputs, problem.bias, skip_tolerance=tolerance, return_stats=True
    )
    return float(stats.visited.sum() / stats.visible.sum())


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of threads of torch and of this package within the block."""
    before = torch.get_num_threads(), na.info()["threads"]
    torch.set_num_threads(count)
    na.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        na.set_num_threads(before[1])

"""Dropout of attention weights against the reference, whose generator has published answers.

Masks, packed texts and every bias with dropout are in tests/biases/test_conformance.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ntk_alibi as na
from attention_checks import (
    NUMPY,
    check,
    each_number_of_threads,
    inputs,
    masked_bias,
)
from gradient_checks import check_gradients, expected, run
from ntk_alibi.fused.dropout import Dropout
from ntk_alibi.fused.gradients import attention_gradients
from ntk_alibi.masks import Cut

SEED = 2**63 + 12345678901

#: Counters, keys and words that Random123 publishes for Philox4x32-10.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(counter: str, key: str, answer: str) -> None:
    made = na.reference.philox4x32(words(counter), words(key))
    assert [int(word) for word in made] == words(answer)


def test_random_numbers(isa: str) -> None:
    """The core's are the reference's, from any first row, head, query and key on."""
    shape = 2, 3, 40, 75
    whole = Dropout(6554, SEED, query=35)
    kept = na.reference.dropout_factors(shape, 0.1, SEED) > 0
    assert (whole.kept(shape) == kept).all()
    part = whole.cut(Cut(*(slice(begin, None) for begin in (1, 1, 33, 69))))
    assert (part.kept((1, 2, 7, 6)) == kept[1:, 1:, 33:, 69:]).all()


#: Batch, heads, heads of keys, queries, keys, head_dim: one block, tiles, a single query.
SHAPES = [
    (1, 2, 1, 9, 30, 16),
    (2, 4, 2, 97, 200, 24),
    (1, 2, 2, 1, 300, 64),
]


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear_bias(isa: str, shape: tuple[int, ...], dtype: str) -> None:
    arrays = inputs(*shape, dtype=dtype)
    heads, queries, keys = shape[1], shape[3], shape[4]
    bias, dropped = na.ALiBi(heads), {"dropout": 0.3, "seed": SEED}
    dense_bias = masked_bias(bias, queries, keys)
    check(
        *arrays,
        dense_bias,
        na.attention(*arrays, bias, **dropped, return_logsumexp=True),
        **dropped,
    )
    result, do, dl = run(arrays, bias, dropped)
    check_gradients(expected(arrays, dense_bias, do, dl, **dropped), result)


def test_threads_change_nothing() -> None:
    arrays = inputs(2, 4, 2, 130, 700, 32)
    results = []
    for _ in each_number_of_threads(1, 3):
        output = na.attention(*arrays, na.ALiBi(4), dropout=0.2, seed=5)
        gradients, _, _ = run(arrays, na.ALiBi(4), {"dropout": 0.2, "seed": 5})
        results.append((output, gradients.query, gradients.key, gradients.value))
    assert all((one == other).all() for one, other in zip(*results, strict=True))


def test_chunks_of_queries() -> None:
    """A query's place is its column: a text that arrives in chunks drops the same weights."""
    arrays = inputs(1, 2, 2, 150, 150, 16)
    dropped = {"dropout": 0.3, "seed": 2}
    whole = na.attention(*arrays, na.ALiBi(2), **dropped)
    for begin, end in ((0, 70), (70, 73), (73, 150)):
        query, key, value = arrays[0][:, :, begin:end], *(x[:, :, :end] for x in arrays[1:])
        part = na.attention(query, key, value, na.ALiBi(2), **dropped)
        np.testing.assert_allclose(part, whole[:, :, begin:end], rtol=0, atol=2e-6)


def test_dropped_values_do_not_count() -> None:
    """A value that is not finite stays with the queries that read it."""
    query, key, value = inputs(1, 1, 1, 100, 100, 16)
    value[0, 0, 40] = np.inf
    output = na.attention(query, key, value, causal=False, dropout=0.5, seed=1)
    reads = na.reference.dropout_factors((1, 1, 100, 100), 0.5, 1)[0, 0, :, 40] > 0
    assert (np.isfinite(output).all(axis=-1)[0, 0] == ~reads).all()


def test_least_share_and_none() -> None:
    """Dropout is rounded to multiples of 2^-16; none is the call without it, all leaves zeros."""
    arrays = inputs(1, 2, 2, 20, 70, 16)
    plain = na.attention(*arrays)
    for dropout in (0, 0.0, 2**-18):
        assert (na.attention(*arrays, dropout=dropout) == plain).all()
    assert (na.attention(*arrays, dropout=1 - 2**-16, seed=0) != plain).any()
    output, log = na.attention(*arrays, dropout=1.0, seed=0, return_logsumexp=True)
    gradients = attention_gradients(*arrays, output, log, plain, dropout=1.0, seed=0)
    assert not output.any()
    assert np.isfinite(log).all()
    assert not any(x.any() for x in (gradients.query, gradients.key, gradients.value))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_skipping_is_decided_before_dropout(isa: str, dtype: str) -> None:
    """The logsumexp and the blocks that are read are those without dropout, to the last bit."""
    arrays = inputs(1, 4, 4, 300, 900, 64, dtype=dtype)
    options: dict[str, Any] = {"return_logsumexp": True, "return_stats": True}
    _, log, stats = na.attention(*arrays, na.ALiBi(4), **options)
    _, log_dropped, dropped = na.attention(*arrays, na.ALiBi(4), dropout=0.4, seed=9, **options)
    assert (log == log_dropped).all()
    assert stats.visited.sum() < stats.visible.sum()
    for name in ("visited", "visible", "weighed"):
        assert (getattr(stats, name) == getattr(dropped, name)).all()

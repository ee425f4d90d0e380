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
    random,
)
from gradient_checks import check_gradients, expected, run
from ntk_alibi import _core
from ntk_alibi.fused.call import all_options, checked_call
from ntk_alibi.fused.dropout import Dropout, checked_dropout
from ntk_alibi.fused.forward import compute_in_core
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


def test_share_and_independence() -> None:
    """Each weight is dropped with the probability asked for, regardless of its neighbours."""
    kept = Dropout(19661, 7).kept((2, 4, 200, 300))
    pairs = kept.size
    assert abs(kept.mean() - 0.7) < 5 * np.sqrt(0.21 / pairs)
    centred = kept - 0.7
    for axis in range(4):
        one, next_one = np.moveaxis(centred, axis, 0)[:-1], np.moveaxis(centred, axis, 0)[1:]
        assert abs((one * next_one).mean()) < 5 * 0.21 / np.sqrt(one.size)
    other = Dropout(19661, 8).kept((2, 4, 200, 300)) - 0.7
    assert abs((centred * other).mean()) < 5 * 0.21 / np.sqrt(pairs)


#: Batch, heads, heads of keys, queries, keys, head_dim: one block, tiles, a single query, more
#: queries than keys.
SHAPES = [
    (1, 2, 1, 9, 30, 16),
    (2, 4, 2, 97, 200, 24),
    (1, 2, 2, 1, 300, 64),
    (1, 2, 2, 70, 40, 33),
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


def test_parts_of_a_call() -> None:
    """Parts of the heads, queries and keys drop what the whole call drops."""
    query, key, value = inputs(1, 4, 2, 50, 90, 16)
    options = all_options({"causal": False, "skip_tolerance": None, "dropout": 0.5, "seed": 4})
    call = checked_call(query, key, value, None, options)
    whole, _, _ = compute_in_core(call)
    heads, queries, keys = slice(2, 4), slice(11, 42), (slice(0, 37), slice(37, 90))
    parts = [call.cut(Cut(heads=heads, queries=queries, keys=part)) for part in keys]
    outputs, logs = zip(*(compute_in_core(part)[:2] for part in parts), strict=True)
    joined, _ = na.merge(outputs, logs)
    np.testing.assert_allclose(joined, whole[:, 2:4, queries], rtol=0, atol=2e-6)


def test_rotation_with_runs() -> None:
    """XPOS cuts the queries into runs, which see parts of the keys."""
    arrays = inputs(1, 2, 2, 400, 400, 8)
    xpos = na.XPOS(8, scale_base=16.0)
    dropped = {"dropout": 0.5, "seed": 6}
    output = na.attention(*arrays, None, rotary=xpos, window=90, **dropped)
    kept = na.reference.dropout_factors((1, 2, 400, 400), **dropped)
    # Values of one channel each show the weights of some keys.
    plain = na.attention(*arrays[:2], np.ones_like(arrays[2]), None, rotary=xpos, window=90)
    np.testing.assert_allclose(plain, 1.0, atol=1e-5)
    for j in (5, 130, 399):
        one = np.zeros_like(arrays[2])
        one[:, :, j] = 1.0
        weight, dropped_weight = (
            na.attention(*arrays[:2], one, None, rotary=xpos, window=90, **x)[..., 0]
            for x in ({}, dropped)
        )
        np.testing.assert_allclose(dropped_weight, weight * kept[..., j], rtol=1e-4, atol=1e-6)
    assert np.isfinite(output).all()


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


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dropout": 0.1}, ValueError, "seed must be given with dropout of NumPy arrays"),
        ({"dropout": 1.5}, ValueError, "dropout must be at most 1, got 1.5"),
        ({"dropout": -0.1}, ValueError, "dropout must be a finite number >= 0, got -0.1"),
        ({"dropout": True}, TypeError, "dropout must be a number, got True"),
        ({"dropout": 0.1, "seed": 0.5}, TypeError, "seed must be an integer, got 0.5"),
        ({"seed": -1}, ValueError, "seed must be between 0 and 18446744073709551615, got -1"),
        ({"seed": 2**64}, ValueError, "seed must be between 0 and 18446744073709551615, got 1844"),
    ],
)
def test_refusals(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        na.attention(*inputs(1, 1, 1, 4, 4, 8), **options)


def test_gradients_need_the_seed() -> None:
    torch = pytest.importorskip("torch")
    tensors = [torch.from_numpy(x) for x in inputs(1, 1, 1, 4, 4, 8)]
    output, log = na.attention(*tensors, dropout=0.5, return_logsumexp=True)
    with pytest.raises(ValueError, match="seed must be given with dropout: the seed of the call"):
        attention_gradients(*tensors, output, log, output, dropout=0.5)


def test_seed_of_all_bits() -> None:
    """Each of 64 bits counts."""
    query = random(0, 1, 1, 40, 8)
    seeds = [0, *(1 << bit for bit in range(64))]
    kept = [checked_dropout(0.5, seed, query, 40).kept((1, 1, 40, 40)) for seed in seeds]  # type: ignore[union-attr]
    assert len({values.tobytes() for values in kept}) == 65
    assert _core.active_isa()

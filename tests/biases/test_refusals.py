"""Error messages for wrong arguments of biases and slopes: each one made to happen.

`tests/test_fuzz.py` passes many wrong values for every argument and checks the name; here each
sentence is written once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from attention_checks import UNIT, inputs
from ntk_alibi.biases import BiasObject, KernelBias

SMALL = inputs(1, 2, 2, 4, 6, 4)
MASK = np.ones((2, 5), np.int64)
NAN, INF = float("nan"), float("inf")
LEARNED = torch.ones(2, requires_grad=True)
TWO = np.ones((1, 2, 1), np.float32)
HUGE = torch.full((2,), 1e300, dtype=torch.float64, requires_grad=True)
DYNAMIC = na.DynamicNTK()


def call(bias: Any, **options: Any) -> Any:
    return na.attention(*SMALL, bias, **options)


def build(mask: Any = MASK, heads: Any = 4, dtype: Any = np.float32, *args: Any, **kw: Any) -> Any:
    return na.build_alibi_tensor(mask, heads, dtype, *args, **kw)


class Foreign(BiasObject):
    """A user's bias, which returns anything."""

    def __init__(self, made: Any) -> None:
        self.define(made=made, num_heads=2, sides="symmetric")

    def kernel_bias(self, problem: Any, like: Any = None) -> Any:
        return self.made


def foreign(**fields: Any) -> Any:
    return call(Foreign(KernelBias(**fields)))


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    # slopes
    (lambda: na.alibi_slopes(0), ValueError, "num_heads must be between 1 and 1048576, got 0"),
    (lambda: na.alibi_slopes(2.5), TypeError, "num_heads must be an integer, got 2.5"),
    (lambda: na.alibi_slopes(8, rule="x"), ValueError, "rule must be one of 'press', 'geometric'"),
    (lambda: na.alibi_slopes(8, DYNAMIC, [1.5]), TypeError, r"lengths must be integers, got \[1.5"),
    (lambda: na.alibi_slopes(8, DYNAMIC, [-1]), ValueError, "lengths must be between 0 and 2147"),
    (lambda: na.alibi_slopes(8, DYNAMIC, [[1]]), ValueError, r"shape \(batch,\), got \(1, 1\)"),
    (
        lambda: na.alibi_slopes(8, na.DynamicNTK(per="query"), lengths=5),
        ValueError,
        r"lengths must have shape \(batch,\) or \(batch, queries\), got \(\)",
    ),
    # the bias of keys alone
    (lambda: build([[1, 1]]), TypeError, "attention_mask must be a NumPy array or a torch tensor"),
    (lambda: build(np.ones(5)), ValueError, r"attention_mask must have shape \(batch, keys\)"),
    (lambda: build(np.array([[0, 2]])), ValueError, "attention_mask must hold only 0 and 1, got 2"),
    (lambda: build(MASK, 4, np.int32), TypeError, "dtype must be one of float32, .* got int32"),
    (lambda: build(MASK, 4, "floot"), TypeError, "dtype must be a NumPy or torch dtype"),
    (lambda: build(anchor="middle"), ValueError, "anchor must be one of 'first', 'last'"),
    (lambda: build(out=np.empty((8, 1, 4), "f4")), ValueError, r"out must have shape \(8, 1"),
    (lambda: build(out=np.empty((8, 1, 5))), ValueError, "out must .* float32, got .* float64"),
    (lambda: build(out=torch.empty((8, 1, 5))), TypeError, "out must be a NumPy array, got Tensor"),
    (
        lambda: build(out=np.empty((8, 1, 10), np.float32)[:, :, ::2]),
        ValueError,
        "out must be contiguous, aligned, writable",
    ),
    # ALiBi
    (lambda: na.ALiBi(4, sides="both"), ValueError, "sides must be one of 'causal'.* got 'both'"),
    (lambda: na.ALiBi(4, sides="two_slopes"), ValueError, r"a pair \(left, right\) for .* got Non"),
    *[
        (
            lambda sides=sides: na.ALiBi(4, slopes=(np.ones(4), torch.ones(4)), sides=sides),
            ValueError,
            f"one array or list for sides='{sides}', got a tuple: a pair .* needs sides='two_slop",
        )
        for sides in ("causal", "symmetric", "halves")
    ],
    (lambda: na.ALiBi(4, na.NTK(2.0), slopes=np.ones(4)), ValueError, "scaling must be None when"),
    (lambda: na.ALiBi(4, slopes=np.ones(3)), ValueError, r"slopes must have 4 heads, got 3 \(shap"),
    (lambda: na.ALiBi(4, slopes=np.ones((1, 1, 4, 4))), ValueError, r"slopes must have shape \(he"),
    (lambda: na.ALiBi(4, slopes=np.ones(4, int)), TypeError, "slopes must be floating, got .*int"),
    (lambda: na.ALiBi(1, slopes=np.array([NAN])), ValueError, "slopes must not hold NaN"),
    (lambda: na.ALiBi(1, slopes=np.array([-INF])), ValueError, "hold -infinity; .infinity hides"),
    (
        lambda: na.ALiBi(2, slopes=(np.ones(2), np.ones(3)), sides="two_slopes"),
        ValueError,
        r"slopes \(right\) must have 2 heads, got 3",
    ),
    (
        lambda: na.ALiBi(2, slopes=(np.ones((2, 2)), np.ones((3, 2))), sides="two_slopes").tensor(
            1, 1
        ),
        ValueError,
        "slopes must have one batch size, got 2 on the left and 3 on the right",
    ),
    (
        lambda: na.ALiBi(2, slopes=np.ones((1, 2, 3))).tensor(4, 4),
        ValueError,
        "slopes must be given for 4 queries, got 3",
    ),
    (lambda: call(na.ALiBi(2, slopes=np.ones((3, 2)))), ValueError, "slopes must be for 1 row or"),
    (lambda: call(na.ALiBi(2, na.Knee(1, 1e-38), slopes=np.ones(2) * 9)), ValueError, "beyond the"),
    # heads, sides and dense tensors of any bias
    (lambda: call(na.KerpleLog([1.0] * 3, 1.0)), ValueError, "bias must have query's 2 heads, got"),
    (lambda: call(na.ALiBi(2), causal=False), ValueError, "bias must cover both sides .* got A"),
    (lambda: na.ALiBi(4).tensor(-1, 4), ValueError, "query_length must be between 0 .* got -1"),
    (lambda: na.ALiBi(4).tensor(2, 2, np.float64), TypeError, "dtype must be one of .* got float6"),
    (lambda: na.ALiBi(4).tensor(2, 2, out=np.ones((1, 4, 2, 2))), TypeError, "dtype of out must b"),
    (lambda: na.ALiBi(4).tensor(2, 2, out=3), TypeError, "out must be a NumPy array"),
    (
        lambda: na.ALiBi(4, DYNAMIC).tensor(2, 2, lengths=[3]),
        ValueError,
        "lengths must be at most key_length 2, got 3",
    ),
    (
        lambda: na.ALiBi(2, slopes=LEARNED).tensor(4, 4),
        ValueError,
        r"slopes must not require grad here.*slopes.detach\(\)",
    ),
    (
        lambda: na.KerplePower(LEARNED, 1.0).tensor(2, 2),
        ValueError,
        "a parameter of the bias must not require grad here",
    ),
    # values for each head
    (lambda: na.KerplePower([0.0], [1.0]), ValueError, "r1 must be finite and > 0, got 0.0"),
    (lambda: na.KerplePower([1.0], [2.5]), ValueError, "r2 must be .* > 0 and <= 2, got 2.5"),
    (lambda: na.KerplePower(1.0, [1.0]), ValueError, r"r1 must have shape \(heads,\), got \(\)"),
    (lambda: na.KerplePower([1.0], [1.0, 1.0]), ValueError, "r2 must have 1 heads, got 2"),
    (lambda: na.KerplePower(["x"], [1.0]), TypeError, "r1 must hold real values"),
    (lambda: na.KerplePower(torch.ones(1).int(), 1.0), TypeError, "r1 must be floating"),
    (lambda: na.BAM([1.0], 1.0, epsilon=-1.0), ValueError, "epsilon must be .* >= 0, got -1.0"),
    (lambda: na.BAM([1.0], 1.0, mu=INF), ValueError, "mu must be finite, got inf"),
    (lambda: call(na.KerpleLog([1e300] * 2, 1.0)), ValueError, "bias must be within float32's ran"),
    (
        lambda: na.attention(*map(torch.from_numpy, SMALL), na.KerpleLog(HUGE, 1.0)),
        ValueError,
        "bias must be within float32's range",
    ),
    # Sandwich
    (lambda: na.Sandwich(2, 7), ValueError, "dimension must be a multiple of .* = 2, got 7"),
    (lambda: na.Sandwich(2).concatenated(*SMALL[:2], scale=0.0), ValueError, "scale must not be 0"),
    (lambda: na.Sandwich(3).concatenated(*SMALL[:2]), ValueError, "bias's 3 heads, got 2"),
    # T5, tables, functions
    (lambda: na.T5(np.ones(3)), ValueError, r"values must have shape \(heads, buckets\), got \(3,"),
    (lambda: na.T5(np.ones((1, 3))), ValueError, "values must have at least 4 buckets, got 3"),
    (lambda: na.T5(np.ones((1, 32)), max_distance=8), ValueError, "max_distance must be .* 9"),
    (lambda: na.T5(np.ones((1, 32)), "no"), TypeError, "bidirectional must be True or False"),
    (lambda: na.T5([[NAN] * 4]), ValueError, "values must not hold NaN or infinity, got nan"),
    (lambda: na.DistanceTable([1.0]), ValueError, r"table must have shape \(heads, distances\)"),
    (lambda: na.DistanceTable(torch.eye(4).to_sparse()), TypeError, "table must be a dense tensor"),
    (lambda: call(na.DistanceTable(np.ones((2, 5)))), ValueError, "0 to 5 .* seen, got 5 from 0"),
    (lambda: na.DistanceFunction(3, 1), TypeError, "function must be callable, got 3"),
    (lambda: na.DistanceFunction(lambda d: 1.0, 1), ValueError, "for 2 distances, got 1.0"),
    (lambda: na.DistanceFunction(lambda d: d[:1], 3), ValueError, r"\(3, 2\) or \(2,\) .* \(1,\)"),
    (lambda: na.DistanceFunction(lambda d: d * NAN, 1), ValueError, "function's values must not"),
    (
        lambda: call(na.KerpleLog([1.0] * 2, 1.0), query_positions=np.ones(4)),
        TypeError,
        "query_positions must be integers, got dtype float64",
    ),
    (
        lambda: call(na.KerpleLog([1.0] * 2, 1.0), key_positions=np.array([0, 1, 2, 3, 4, 2**30])),
        ValueError,
        "positions must be less than 67108864 apart",
    ),
    # forget gates
    (lambda: na.ForgetGates([[[0.5]]]), ValueError, "log_gates must be <= 0, .* got 0.5"),
    (lambda: na.ForgetGates([[0.5]]), ValueError, r"log_gates must have shape \(batch, h"),
    (lambda: call(na.ForgetGates(-np.ones((1, 2, 5)))), ValueError, r"shape \(1, 2, 6\), .* \(1"),
    (lambda: call(na.ForgetGates(np.full((1, 2, 6), -INF))), ValueError, "must be finite where"),
    (lambda: call(na.ForgetGates(np.full((1, 2, 6), -1e9))), ValueError, r"at least -1e\+09 .* -6"),
    (
        lambda: na.ForgetGates(-np.ones((1, 2, 3))).tensor(4, 3),
        ValueError,
        r"query must be at most as long as key \(3\) with forget gates, got 4",
    ),
    (
        lambda: call(na.ForgetGates(-np.ones((1, 2, 6))), query_positions=np.arange(4)),
        ValueError,
        "query_positions must be None and align 'end' with forget gates",
    ),
    (lambda: call(na.ForgetGates(-np.ones((1, 2, 6))), align="start"), ValueError, "align 'end'"),
    # what is no bias, and what a user's bias returns
    (lambda: call(na.ALiBi), TypeError, "bias must be None, a bias object, an array or a tensor"),
    (lambda: call(na.NTK(2.0)), TypeError, r"got NTK\(.*: pass ALiBi\(num_heads, NTK\(factor=2.0"),
    (lambda: call(np.ones(6, int)), TypeError, "bias must be floating, got dtype int(32|64)"),
    (lambda: call(np.ones((3, 6))), ValueError, r"broadcastable to \(1, 2, 4, 6\), got \(3, 6\)"),
    (lambda: call(Foreign(3)), TypeError, "kernel_bias must return a KernelBias, got 3 from"),
    (lambda: foreign(left=TWO, table=TWO[0]), ValueError, "got left and table"),
    (lambda: foreign(left=TWO[:, :1], right=TWO), ValueError, "slopes must have .* 2 heads, got 1"),
    (lambda: foreign(sums=TWO), ValueError, r"sums must have shape \(1, 2, 6\), got \(1, 2, 1\)"),
    (
        lambda: call(na.DistanceTable(np.ones((2, 6))), log_n=na.LogN(2, biased=True)),
        ValueError,
        "bias must be linear or dense where log_n is biased, got one in the form of table: pass",
    ),
    # places and tokens of the call
    (lambda: call(None, align="middle"), ValueError, "align must be one of 'end', 'start'"),
    (
        lambda: call(None, align="start", query_positions=np.arange(4)),
        ValueError,
        "query_positions must be None with align='start'",
    ),
    (
        lambda: call(na.ALiBi(2, exempt=1), key_norms=na.KeyNorms().update(SMALL[1])),
        ValueError,
        "key_norms must be None with",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("attempt", "error", "message"), REFUSED, ids=[x[2] for x in REFUSED])
def test_wrong_arguments_get_a_sentence(
    attempt: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        attempt()


def test_key_norms_are_for_tables() -> None:
    call(na.KerpleLog([1.0, 2.0], UNIT), key_norms=na.KeyNorms().update(SMALL[1]))

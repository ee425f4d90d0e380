"""Any call with a bias over distance, forget gates or exempt tokens equals the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings

import ntk_alibi as na
from attention_calls import Call, calls
from attention_checks import UNIT, check_against, each_isa, expected
from gradient_checks import expected as expected_gradients
from gradient_checks import over_diagonals, running
from ntk_alibi.fused.gradients import AttentionGradients, attention_gradients


def check_call(call: Call) -> None:
    scale, tolerance = (call.options[name] for name in ("scale", "skip_tolerance"))
    what = expected(call.query, call.key, call.value, call.meant, scale, tolerance)
    for _ in each_isa():
        output, logsumexp, stats = call.run(return_stats=True)
        check_against(what, (output, logsumexp))
        assert (stats.visited <= stats.visible).all()


@given(call=calls(kinds=("distance",)))
def test_any_call_over_distance(call: Call) -> None:
    check_call(call)


@given(call=calls(kinds=("gates",), standing=("columns", "real tokens", "gaps")))
def test_any_call_with_forget_gates(call: Call) -> None:
    check_call(call)


@given(call=calls(kinds=("exempt",), dtypes=("float32",)))
def test_any_call_with_exempt_tokens(call: Call) -> None:
    check_call(call)


def gradients(call: Call) -> tuple[AttentionGradients, Any]:
    """Return the gradients of one call, and those of the reference."""
    random = np.random.default_rng(3)
    output, log = call.run()
    do = random.standard_normal(output.shape).astype(output.dtype)
    dl = random.standard_normal(log.shape).astype(np.float32)
    arrays = [call.query, call.key, call.value]
    result = attention_gradients(
        *arrays, output, log, do, dl, call.bias, bias_gradient=True, **call.options
    )
    scale, tolerance = (call.options[name] for name in ("scale", "skip_tolerance"))
    return result, expected_gradients(arrays, call.meant, do, dl, scale, tolerance)


def check_query_key_value(result: AttentionGradients, what: Any, factor: float = 1.0) -> None:
    for mine, theirs, error in zip(
        (result.query, result.key, result.value), what.gradients, what.errors, strict=True
    ):
        assert (np.abs(np.asarray(mine, np.float64) - theirs) <= factor * error).all()


@given(call=calls(kinds=("distance",), dtypes=("float32",), standing=("columns",)))
@settings(max_examples=settings.default.max_examples // 2)
def test_gradients_over_distance(call: Call) -> None:
    for _ in each_isa():
        result, what = gradients(call)
        check_query_key_value(result, what)
        assert result.table is not None
        queries, keys = what.ds.shape[2:]
        index = np.arange(keys - queries, keys)[:, None] - np.arange(keys) - result.table_begin
        size = result.table.shape[1]
        exact, errors = (over_diagonals(x, index, size) for x in (what.ds, what.pairs.errors))
        assert (np.abs(result.table - exact) <= errors).all()


@given(call=calls(kinds=("gates",), dtypes=("float32",), standing=("columns",)))
@settings(max_examples=settings.default.max_examples // 2)
def test_gradients_of_forget_gates(call: Call) -> None:
    for _ in each_isa():
        result, what = gradients(call)
        check_query_key_value(result, what)
        if not isinstance(call.bias, na.ForgetGates):
            continue
        assert result.sums is not None
        pairs = what.pairs
        errors = pairs.errors + UNIT * (pairs.errors.shape[3] + 2) * pairs.sizes
        assert (np.abs(result.sums - running(what.ds, -1.0)) <= running(errors, 1.0)).all()


@given(call=calls(kinds=("exempt",), dtypes=("float32",), standing=("columns", "gaps")))
@settings(max_examples=settings.default.max_examples // 2)
def test_gradients_with_exempt_tokens(call: Call) -> None:
    for _ in each_isa():
        result, what = gradients(call)
        check_query_key_value(result, what, 2.0)  # the keys make two problems, each rounded

"""Prepared calls equal calls of `attention`; arguments are checked once for several layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from attention_checks import inputs, pair_mask
from ntk_alibi._torch_state import Way
from ntk_alibi.biases.base import to_kernel_bias
from ntk_alibi.fused.dropout import checked_dropout
from ntk_alibi.fused.forward import rounded_logsumexp
from ntk_alibi.fused.prepared import compute_prepared
from ntk_alibi.masks import Mask, Problem

SHAPE = (2, 4, 5, 70)
BIAS = na.ALiBi(4, na.NTK(2.0))
PADDING = np.ones((2, 70), np.uint8)
PADDING[1, :9] = 0


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("padding", [None, PADDING], ids=["all real", "padding"])
@pytest.mark.parametrize("kind", ["array", "tensor", "grad"])
def test_a_prepared_call_is_that_of_attention(kind: str, padding: Any, masked: bool) -> None:
    given: list[Any] = inputs(2, 4, 2, 5, 70, 16)
    if kind != "array":
        given = [torch.from_numpy(x).requires_grad_(kind == "grad") for x in given]
    query = given[0]
    way, like = (Way.OPERATOR, query) if kind == "grad" else (Way.CORE, None)
    problem = Problem.checked(SHAPE, Mask(window=40), padding, None, None)
    mask: Any = None
    if masked:
        pairs = pair_mask("half", SHAPE)
        mask = na.BlockMask(pairs if kind == "array" else torch.from_numpy(pairs))
        problem = problem._replace(visible=mask)
    bias = to_kernel_bias(BIAS, problem, like)
    log_n = na.LogN(32)
    factors = log_n.factors(problem, like)
    dropout = checked_dropout(0.3, 7, query, 70)
    shared = bias, problem, 0.2, factors, way
    output, log = compute_prepared(*shared, *given, dropout=dropout, log=True)
    found = output, rounded_logsumexp(log, query)
    options: dict[str, Any] = {"window": 40, "key_padding_mask": padding, "scale": 0.2}
    options |= {"dropout": 0.3, "seed": 7, "mask": mask}
    expected = na.attention(*given, BIAS, **options, log_n=log_n, return_logsumexp=True)
    for mine, theirs in zip(found, expected, strict=True):
        assert type(mine) is type(theirs)
        assert (mine == theirs).all()
    if kind == "grad":
        mine, theirs = (torch.autograd.grad(x[0].sum(), given) for x in (found, expected))
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_a_prepared_call_takes_norms_and_quantized_rows() -> None:
    query, key, value = inputs(2, 4, 2, 5, 70, 16)
    norms, problem = na.KeyNorms().update(key), Problem(SHAPE)
    shared = to_kernel_bias(BIAS, problem), problem, 0.25, None, Way.CORE
    output, log = compute_prepared(*shared, query, key, value, norms=norms)
    assert log is None
    assert (output == na.attention(query, key, value, BIAS, key_norms=norms)).all()
    rows = [na.QuantizedRows.of(x) for x in (key, value)]
    output, _ = compute_prepared(*shared, query, *rows)
    assert (output == na.attention(query, *rows, BIAS)).all()

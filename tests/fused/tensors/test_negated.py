"""Tensors whose negation or conjugation is pending: every argument reads their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ntk_alibi as na
from ntk_alibi.fused.gradients import attention_gradients

Change = Callable[[torch.Tensor], torch.Tensor]

X = torch.randn(3, 1, 2, 5, 8, generator=torch.Generator().manual_seed(0))
QUERY, KEY, VALUE = X
LOG, REAL, IDS = X[0, :, :, :, 0], torch.tensor([[0.0, 1, 1, 1, 1]]), torch.tensor([1, 1, 2, 2, 2])
SLOPES, PARTS = torch.tensor([0.5, 0.25]), (QUERY, KEY)


def pending(x: torch.Tensor) -> torch.Tensor:
    """Return a view with the values of x, whose memory holds their negation."""
    if x.dtype == torch.float32:
        view = torch.complex(torch.zeros_like(x), -x).conj().imag
    else:
        view = torch._neg_view(-x)
    assert view.is_neg()
    return view


def plain(x: torch.Tensor) -> torch.Tensor:
    return x


def attend(*bias: Any, inputs: Any = X, **options: Any) -> Any:
    return na.attention(*inputs, *bias, **options)


def recorded(change: Change, **options: Any) -> Any:
    inputs = [x.detach().requires_grad_() for x in change(X)]
    output = attend(inputs=inputs, **options)
    return torch.stack(torch.autograd.grad(output.square().sum(), inputs))


def rows(change: Change) -> Any:
    held = na.QuantizedRows.of(change(KEY))
    return na.QuantizedRows(change(held.numbers), change(held.scales))


CALLS: dict[str, Callable[[Change], Any]] = {
    "inputs": lambda c: attend(inputs=c(X)),
    "bfloat16": lambda c: attend(inputs=c(X.bfloat16())),
    "gradients": recorded,
    "a dense bias": lambda c: attend(c(X[0, :, :, :, :5])),
    "slopes": lambda c: attend(na.ALiBi(2, slopes=c(SLOPES))),
    "parameters": lambda c: attend(na.KerpleLog(c(SLOPES), c(SLOPES))),
    "gates": lambda c: attend(na.ForgetGates(c(-LOG.abs()))),
    "positions": lambda c: attend(na.ALiBi(2), key_positions=c(IDS), query_positions=c(IDS)),
    "padding": lambda c: attend(key_padding_mask=c(REAL)),
    "segments": lambda c: attend(segment_ids=c(IDS)),
    "recorded": lambda c: recorded(c, key_padding_mask=c(REAL), segment_ids=c(IDS)),
    "initial": lambda c: attend(initial=(c(QUERY), c(LOG))),
    "merge": lambda c: na.merge([c(QUERY), KEY], [c(LOG), LOG])[0],
    "norms": lambda c: attend(
        inputs=(QUERY, c(KEY), VALUE), key_norms=na.KeyNorms().update(c(KEY))
    ),
    "quantized rows": lambda c: attend(inputs=(QUERY, rows(c), rows(c))),
    "lengths": lambda c: na.alibi_slopes(2, na.DynamicNTK(train_length=1), c(IDS)),
    "attention_mask": lambda c: na.build_alibi_tensor(c(REAL), 2, torch.float32),
    "cumulative lengths": lambda c: na.segment_ids_from_cu_seqlens(c(IDS - 1)),
    "incoming gradients": lambda c: (
        attention_gradients(*X, c(attend()), c(attend(return_logsumexp=True)[1]), c(X[1])).query
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_pending_negation_is_read(name: str) -> None:
    torch.testing.assert_close(CALLS[name](pending), CALLS[name](plain), rtol=0, atol=0)


def test_a_negated_view_is_no_buffer() -> None:
    for call in (
        lambda out: na.ALiBi(2).tensor(5, 8, out=out),
        lambda out: na.merge([KEY, KEY], [LOG, LOG], out=(out, LOG.clone())),
    ):
        with pytest.raises(ValueError, match=r"out must be .* or be a negated view"):
            call(pending(QUERY))

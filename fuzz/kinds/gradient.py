"""Gradients of attention: torch's autograd, and `attention_gradients` of arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fuzz.bounds import Bounds, Interval
from fuzz.compare import WrongError, compare
from fuzz.draw import Draw
from fuzz.drawn.arrays import Format
from fuzz.drawn.calls import Call, Wishes, drawn_call
from fuzz.gradient_bounds import GradientBounds
from fuzz.kinds.forward import compare_results
from ntk_alibi.fused.gradients import attention_gradients

Floats = NDArray[np.float64]

NAMES = ("query", "key", "value")


def gradient(draw: Draw) -> None:
    """Check the gradients of inputs and of the bias's parameters."""
    if draw.chance(0.75):
        by_autograd(draw)
    else:
        by_function(draw)


def by_autograd(draw: Draw) -> None:
    """Check what torch's backward pass gives."""
    call = drawn_call(draw, Wishes(learned=True, poison=False, dropout=True, cheaper=3.0))
    inputs = tuple(x.detach().requires_grad_() for x in call.arrays)
    output, log = replace(call, arrays=inputs).attend(return_logsumexp=True)
    compare_results(call, (output, log))
    (do, dl), bounds = _incoming(draw, call)
    torch.autograd.backward((output, log), (do, dl), inputs=[*inputs, *_tensors(call)])
    for name, tensor in zip(NAMES, inputs, strict=True):
        _compare(f"{name}.grad", tensor.grad, getattr(bounds, name), call.form.name)
    for parameter in call.bias.parameters:
        gradient = parameter.tensor.grad
        _compare(f"{parameter.name}.grad", gradient, bounds.parameter(parameter), "float32")


def _tensors(call: Call) -> list[torch.Tensor]:
    return [parameter.tensor for parameter in call.bias.parameters]


def _compare(name: str, gradient: Any, expected: Interval, dtype: str) -> None:
    if gradient is None and not expected.exact.any():  # as torch says: nothing depends on it
        return
    if gradient is None:
        raise WrongError(f"{name} is None")
    compare(name, gradient, expected, dtype)


def _incoming(draw: Draw, call: Call) -> tuple[tuple[Any, Any], GradientBounds]:
    """Draw gradients of output and logsumexp."""
    batch, heads, queries, _ = call.sizes.pairs
    do, exact = call.form.array(draw, draw.normal(batch, heads, queries, call.sizes.dim))
    log = Format("float64" if call.form.name == "float64" else "float32", call.form.tensors)
    dl, exact_log = log.array(draw, draw.normal(batch, heads, queries, 1) * draw.chance(0.5))
    return (do, dl[..., 0]), GradientBounds(Bounds(call), exact, exact_log[..., 0])


def by_function(draw: Draw) -> None:
    """Check the gradients of query, key and value that `attention_gradients` gives."""
    call = drawn_call(draw, Wishes(wide=False, poison=False, dropout=True, cheaper=3.0))
    output, log = call.attend(return_logsumexp=True)
    (do, dl), bounds = _incoming(draw, call)
    with np.errstate(divide="warn", over="warn", invalid="warn"):
        gradients = attention_gradients(
            *call.arrays, output, log, do, dl, call.bias.passed, **call.options
        )
    for name in NAMES:
        compare(name, getattr(gradients, name), getattr(bounds, name), call.form.name)

"""`ntk_alibi.attention` as an operator of torch: autograd, vmap, autocast and compile.

The operator takes tensors, integers and floats. A bias comes as the tensors of a `KernelBias`:
slopes, a table, prefix sums or dense values; torch differentiates the code that computes them from
parameters. The compiled core computes float32, bfloat16 and float16 on the CPU, torch/chunks.py
float64, and torch/devices tensors on other devices.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from ntk_alibi import _arrays, _checks
from ntk_alibi.biases.kernel_bias import ARRAYS as BIAS_TENSORS
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.fused.call import AttentionCall, core_rule
from ntk_alibi.fused.forward import forward
from ntk_alibi.fused.gradients import ForwardResults, compute_gradients
from ntk_alibi.fused.parts import Results, attend_in_parts
from ntk_alibi.masks import Mask, Problem, SegmentIds
from ntk_alibi.torch.chunks import attention_by_chunks
from ntk_alibi.torch.devices.dispatch import attention_on_device
from ntk_alibi.torch.dropout import make_dropout, to_integers, to_seed

Tensors: TypeAlias = tuple[torch.Tensor, ...]

#: The masks and positions of a problem, in the operator's order.
PROBLEM_TENSORS = ("key_padding_mask", "query_positions", "key_positions")

#: The packed segments of queries and keys.
SEGMENTS = ("query_segment_ids", "segment_ids")

#: The names of all optional tensors.
OPTIONAL_TENSORS = (
    *BIAS_TENSORS, *PROBLEM_TENSORS, *SEGMENTS, "factors", "known", "seed",
)  # fmt: skip

_INPUTS = (
    "Tensor query, Tensor key, Tensor value, "
    + "".join(f"Tensor? {name}, " for name in OPTIONAL_TENSORS)
    + "int table_begin, int knee, int exempt, int[] mask, bool checked, float scale, "
    + "float? skip_tolerance, int[] dropout"
)


@torch.library.custom_op(
    "ntk_alibi::attention",
    mutates_args=(),
    device_types="cpu",
    schema=f"({_INPUTS}) -> (Tensor, Tensor)",
)
def _attention(*inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    output, logsumexp, _ = forward(_make_call(*inputs))
    return output, logsumexp


@_attention.register_fake
def _(query: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return query.new_empty(query.shape), query.new_empty(query.shape[:3], dtype=torch.float64)


@torch.library.custom_op(
    "ntk_alibi::attention_backward",
    mutates_args=(),
    device_types="cpu",
    schema=(
        "(Tensor output_gradient, Tensor? logsumexp_gradient, Tensor output, Tensor logsumexp, "
        f"bool bias_gradient, {_INPUTS}) -> ({', '.join(['Tensor'] * (3 + len(BIAS_TENSORS)))})"
    ),
)
def _attention_backward(
    output_gradient: torch.Tensor,
    logsumexp_gradient: torch.Tensor | None,
    output: torch.Tensor,
    logsumexp: torch.Tensor,
    bias_gradient: bool,
    *inputs: Any,
) -> Tensors:
    results = ForwardResults(output, logsumexp, output_gradient, logsumexp_gradient)
    gradients = compute_gradients(_make_call(*inputs), results, bias_gradient=bias_gradient)
    bias_gradients = (
        _sum_to_shape(getattr(gradients, name), tensor, batched=name != "table")
        for name, tensor in zip(BIAS_TENSORS, inputs[3:], strict=False)
    )
    return (gradients.query, gradients.key, gradients.value, *bias_gradients)


def _sum_to_shape(gradient: Any, tensor: torch.Tensor | None, *, batched: bool) -> torch.Tensor:
    """Sum a gradient, (batch, heads, ...) if batched, to the shape of its tensor."""
    if gradient is None or tensor is None:
        return torch.empty(0)
    if not batched:
        return torch.from_numpy(gradient).to(_gradient_dtype(tensor))
    shape = tuple(tensor.shape) if tensor.ndim > 1 else (1, *tensor.shape, 1)
    axes = tuple(i for i, size in enumerate(shape) if size == 1 and gradient.shape[i] != 1)
    if axes:
        gradient = np.asarray(gradient, np.float64).sum(axis=axes, keepdims=True)
    return torch.from_numpy(gradient.reshape(tensor.shape)).to(_gradient_dtype(tensor))


@_attention_backward.register_fake
def _(
    output_gradient: torch.Tensor,
    logsumexp_gradient: torch.Tensor | None,
    output: torch.Tensor,
    logsumexp: torch.Tensor,
    bias_gradient: bool,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *rest: Any,
) -> Tensors:
    biases = (
        query.new_empty(0, dtype=torch.float32)
        if x is None or not bias_gradient
        else x.new_empty(x.shape, dtype=_gradient_dtype(x))
        for x in rest[: len(BIAS_TENSORS)]
    )
    return (*(x.new_empty(x.shape) for x in (query, key, value)), *biases)


def _make_call(query: Any, key: Any, value: Any, *rest: Any) -> AttentionCall:
    """Return the call that the operator's inputs describe; check it unless that was done before."""
    count = len(OPTIONAL_TENSORS)
    arrays: list[Any] = [None if x is None else _arrays.to_numpy(x) for x in rest[:count]]
    table_begin, knee, exempt, mask_integers, checked, scale, skip_tolerance, dropout = rest[count:]
    bias_arrays: dict[str, Any] = dict(zip(BIAS_TENSORS, arrays, strict=False))
    bias = KernelBias(**bias_arrays, table_begin=table_begin, knee=knee, exempt=exempt)
    shape, mask = (*query.shape[:3], key.shape[2]), Mask.from_integers(*mask_integers)
    *others, factors, known, seed = arrays[len(BIAS_TENSORS) :]
    problem_arrays = others[: len(PROBLEM_TENSORS)]
    segment_ids = dict(zip(SEGMENTS, others[len(PROBLEM_TENSORS) :], strict=True))
    rule = core_rule(mask, scale, skip_tolerance)
    if checked:
        packed = segment_ids["segment_ids"] is not None
        ids = SegmentIds(*segment_ids.values()) if packed else None
        problem = Problem(shape, mask, *problem_arrays)._replace(segment_ids=ids)
    else:
        problem = Problem.checked(shape, mask, *problem_arrays, **segment_ids)
        bias = bias.checked(problem._replace(explicit_positions=False))  # sums were refused before
    return AttentionCall(
        query, key, value, bias, problem, rule, scale, skip_tolerance,
        factors=factors, initial_logsumexp=known, dropout=make_dropout(seed, dropout),
    )  # fmt: skip


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    ctx.set_materialize_grads(False)
    tensors = 3 + len(OPTIONAL_TENSORS)
    ctx.save_for_backward(*inputs[:tensors], *output)
    ctx.options = inputs[tensors:]


def _differentiate(
    ctx: Any, output_gradient: torch.Tensor | None, logsumexp_gradient: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:
    *inputs, output, logsumexp = ctx.saved_tensors
    if output_gradient is None:
        output_gradient = torch.zeros_like(output)
    biases = ctx.needs_input_grad[3 : 3 + len(BIAS_TENSORS)]
    gradients = _attention_backward(
        output_gradient, logsumexp_gradient, output, logsumexp, any(biases), *inputs, *ctx.options
    )
    needed_gradients = (
        gradient if needed else None
        for gradient, needed in zip(gradients, ctx.needs_input_grad, strict=False)
    )
    others = len(OPTIONAL_TENSORS) - len(BIAS_TENSORS) + len(ctx.options)
    return (*needed_gradients, *[None] * others)


_attention.register_autograd(_differentiate, setup_context=_save)


@_attention.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
    results = [
        _attention(
            *(
                x.select(dim, i) if isinstance(dim, int) else x
                for x, dim in zip(inputs, in_dims, strict=True)
            )
        )
        for i in range(info.batch_size)
    ]
    outputs, logsumexps = zip(*results, strict=True)
    return (torch.stack(outputs), torch.stack(logsumexps)), (0, 0)


def attend_tensors(call: AttentionCall, *, log: bool = True) -> tuple[Any, Any]:
    """Compute a checked call of tensors: the output and, if log, the logsumexp."""
    attend = partial(_attend, log=log)
    if call.rotary is None:
        return attend_in_parts(call, attend)[:2]
    with _arrays.without_autocast(call.query.device.type):  # rotated inputs are not rounded
        return attend_in_parts(call, attend)[:2]


def _attend(call: AttentionCall, *, log: bool) -> Results:
    """Compute a call without rotation."""
    query, bias, problem = call.query, call.bias, call.problem
    if query.device.type != "cpu":
        return (*attention_on_device(call, log=log), None)
    if not call.fits_core:
        return (*attention_by_chunks(call), None)
    for tensor in bias.arrays.values():
        _checks.no_tangent("bias", tensor)
    problem_tensors = [getattr(problem, name) for name in PROBLEM_TENSORS]
    problem_tensors += problem.segment_ids or (None, None)
    dense = bias.dense
    if dense is not None and dense.requires_grad:  # so that torch sums over broadcast axes
        bias = bias._replace(dense=dense.expand(problem.shape))
    output, logsumexp = _attention(
        query,
        call.key,
        call.value,
        *(getattr(bias, name) for name in BIAS_TENSORS),
        *(None if x is None else _arrays.as_tensor(x, query, None) for x in problem_tensors),
        call.factors,
        None if call.initial_logsumexp is None else call.initial_logsumexp.detach(),
        to_seed(call.dropout),
        bias.table_begin,
        bias.knee,
        bias.exempt,
        problem.mask.to_integers(),
        _arrays.has_values(*problem_tensors),
        call.scale,
        call.skip_tolerance,
        to_integers(call.dropout),
    )
    return output, logsumexp, None


def _gradient_dtype(tensor: torch.Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32

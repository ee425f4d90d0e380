"""`ntk_alibi.attention` as an operator of torch: autograd, vmap, autocast and compile.

The operator takes tensors, integers and floats. A bias comes as the tensors of a `KernelBias`:
slopes, a table, prefix sums or dense values; torch differentiates the code that computes them from
parameters. The compiled core computes the operator and its first gradients. Where torch takes other
derivatives, and for float64, chunks.py computes, and devices/ on other devices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch.utils import _python_dispatch
from torch.utils.flop_counter import flop_registry, register_flop_formula

from ntk_alibi import _arrays
from ntk_alibi._backends import backend_of
from ntk_alibi._torch_state import (
    Way,
    has_values,
    is_tracing,
    is_transformed,
    refuse_torch,
    without_autocast,
)
from ntk_alibi.biases.kernel_bias import ARRAYS as BIAS_TENSORS
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.fused.call import AttentionCall, check_lengths, checked_call
from ntk_alibi.fused.forward import compute_in_core
from ntk_alibi.fused.gradients import ForwardResults, compute_gradients
from ntk_alibi.fused.parts import Results, compute_in_parts
from ntk_alibi.fused.tensors.chunks import Tensors, compute_by_chunks
from ntk_alibi.fused.tensors.devices.dispatch import compute_on_device
from ntk_alibi.fused.tensors.dropout import make_dropout, to_integers, to_seed
from ntk_alibi.masks import BlockMask, Mask, Problem, SegmentIds

Function = TypeVar("Function", bound=Callable[..., Any])

# Modes that were entered before this module was imported.
try:
    _modes = _python_dispatch._get_current_dispatch_mode_stack()
except AttributeError as error:
    refuse_torch(error)

#: The masks and positions of a problem, in the operator's order.
PROBLEM_TENSORS = ("key_padding_mask", "query_positions", "key_positions")

#: The packed segments of queries and keys.
SEGMENTS = ("query_segment_ids", "segment_ids")

#: The names of all optional tensors.
OPTIONAL_TENSORS = (
    *BIAS_TENSORS, *PROBLEM_TENSORS, *SEGMENTS, "factors", "known", "seed", "visible",
)  # fmt: skip

_INPUTS = (
    "Tensor query, Tensor key, Tensor value, "
    + "".join(f"Tensor? {name}, " for name in OPTIONAL_TENSORS)
    + "SymInt table_begin, int exempt, int[] mask, bool checked, float scale, "
    + "float? skip_tolerance, SymInt[] dropout"
)


@torch.library.custom_op(
    "ntk_alibi::attention",
    mutates_args=(),
    device_types="cpu",
    schema=f"({_INPUTS}) -> (Tensor, Tensor)",
)
def _attention(*inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    output, logsumexp, _ = compute_in_core(_make_call(*inputs))
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


def _make_call(
    query: Any, key: Any, value: Any, *rest: Any, way: Way = Way.OPERATOR
) -> AttentionCall:
    """Return the call that the operator's inputs describe; check it unless that was done before.

    For torch's operations all inputs stay tensors.
    """
    count, in_core = len(OPTIONAL_TENSORS), way is Way.OPERATOR
    like = None if in_core else query
    arrays: list[Any] = [
        _arrays.to_numpy(x) if in_core and x is not None else x for x in rest[:count]
    ]
    table_begin, exempt, mask_integers, checked, scale, skip_tolerance, dropout = rest[count:]
    bias_arrays: dict[str, Any] = dict(zip(BIAS_TENSORS, arrays, strict=False))
    bias = KernelBias(**bias_arrays, table_begin=table_begin, exempt=exempt)
    shape, mask = (*query.shape[:3], key.shape[2]), Mask.from_integers(*mask_integers)
    check_lengths(*shape[2:])
    *others, factors, known, seed, visible = arrays[len(BIAS_TENSORS) :]
    given: dict[str, Any] = dict(zip((*PROBLEM_TENSORS, *SEGMENTS), others, strict=True))
    if checked:
        of_queries, of_keys = (given.pop(name) for name in SEGMENTS)
        ids = None if of_keys is None else SegmentIds(of_queries, of_keys)
        problem = Problem(shape, mask, **given, segment_ids=ids)
    else:
        problem = Problem.checked(shape, mask, like=like, **given)
        problem.check_columns()
        bias = bias.checked(problem._replace(explicit_positions=False))  # sums were refused before
    if visible is not None:
        of_tensor = BlockMask.of_operand if in_core else BlockMask
        problem = problem._replace(visible=of_tensor(rest[count - 1]))
    return AttentionCall(
        query, key, value, bias, problem, way, scale, skip_tolerance,
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
    if torch.is_grad_enabled() or is_transformed(maps=True):  # a derivative of these derivatives
        gradients = output_gradient, logsumexp_gradient
        return _differentiable_gradients(ctx, inputs, gradients)
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


def _differentiable_gradients(
    ctx: Any, inputs: list[torch.Tensor | None], gradients: tuple[torch.Tensor | None, ...]
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of all inputs by torch's operations, which can be differentiated."""
    names = ("query", "key", "value", *OPTIONAL_TENSORS)
    needed = ctx.needs_input_grad[: len(names)]
    with torch.enable_grad():
        # Gradients with respect to views are functions of the inputs.
        views = {
            name: x.view_as(x)
            for name, x, recorded in zip(names, inputs, needed, strict=True)
            if x is not None and recorded
        }
        given = (views.get(name, x) for name, x in zip(names, inputs, strict=True))
        call = _make_call(*given, *ctx.options, way=Way.OPERATIONS)
        results = compute_tensors(call)
        pairs = zip(results, gradients, strict=True)
        outputs, incoming = zip(
            *((x, y.to(x.dtype)) for x, y in pairs if y is not None), strict=True
        )
        found = torch.autograd.grad(
            outputs, list(views.values()), incoming, create_graph=True, allow_unused=True
        )
    by_name = dict(zip(views, found, strict=True))
    return (*(by_name.get(name) for name in names), *[None] * len(ctx.options))


def in_graph(function: Function) -> Function:
    """Return a function that torch.compile follows, before torch 2.12 one that breaks the graph.

    Dynamo of older ones reads no arrays of a bias, and fails in code that it could leave alone.
    """
    if torch.__version__ >= "2.12":
        return function
    reason = "ntk_alibi: attention is part of a graph from torch 2.12 on"
    return cast(Function, torch.compiler.disable(function, reason=reason))


check_tensors = in_graph(checked_call)


@in_graph
def compute_tensors(call: AttentionCall, *, log: bool = True) -> tuple[Any, Any]:
    """Compute a checked call of tensors: the output and, if log, the logsumexp."""
    if call.way is Way.OPERATOR and call.rotary is None:
        return _compute_without_rotation(call, log=log)[:2]
    # Rotated inputs and scores are not rounded.
    with without_autocast(call.query.device.type):
        return compute_in_parts(call, partial(_compute_without_rotation, log=log))[:2]


def _compute_without_rotation(call: AttentionCall, *, log: bool) -> Results:
    """Compute a call without rotation."""
    if call.way is Way.DEVICE:
        return (*compute_on_device(call, log=log), None)
    if call.way is Way.OPERATIONS:
        return (*compute_by_chunks(call, log=log), None)
    query, bias, problem = call.query, call.bias, call.problem
    problem_tensors = [getattr(problem, name) for name in PROBLEM_TENSORS]
    problem_tensors += problem.segment_ids or (None, None)
    known = has_values(*problem_tensors) and not is_tracing()
    own = torch.Tensor.clone if known and torch.is_grad_enabled() else torch.Tensor.detach
    dense = bias.dense
    if dense is not None and dense.requires_grad:  # so that torch sums over broadcast axes
        bias = bias._replace(dense=dense.expand(problem.shape))
    output, logsumexp = _attention(
        query,
        call.key,
        call.value,
        *(getattr(bias, name) for name in BIAS_TENSORS),
        # Copies: the caller may change positions and ids before the backward pass.
        *(None if x is None else own(backend_of(query).convert(x)) for x in problem_tensors),
        call.factors,
        None if call.initial_logsumexp is None else call.initial_logsumexp.detach(),
        to_seed(call.dropout),
        None if problem.visible is None else problem.visible.operand,
        bias.table_begin,
        bias.exempt,
        problem.mask.to_integers(),
        known,
        call.scale,
        call.skip_tolerance,
        to_integers(call.dropout),
    )
    return output, logsumexp, None


@register_flop_formula(torch.ops.ntk_alibi.attention)
def _(query_shape: Any, key_shape: Any, *_: Any, **__: Any) -> int:
    """Count as torch counts its own attention: two products of all pairs, hidden ones included."""
    return 2 * _count_of_product(query_shape, key_shape)


@register_flop_formula(torch.ops.ntk_alibi.attention_backward)
def _(*shapes: Any, **_: Any) -> int:
    """Count five products; the operator gets the query and the key after five others."""
    return 5 * _count_of_product(*shapes[5:7])


def _count_of_product(query_shape: Any, key_shape: Any) -> int:
    batch, heads, queries, channels = query_shape
    return int(2 * batch * heads * queries * key_shape[2] * channels)


# Counters among these modes have none of the formulas.
_operators = torch.ops.ntk_alibi.attention, torch.ops.ntk_alibi.attention_backward
for _mode in _modes:
    _formulas = getattr(getattr(_mode, "counter", None), "flop_registry", {})
    _formulas.update({operator: flop_registry[operator] for operator in _operators})


def _gradient_dtype(tensor: torch.Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32

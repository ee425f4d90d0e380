"""`ntk_alibi.attention` for tensors that need more than their numbers: an operator of torch.

The operator takes tensors and plain numbers. A linear bias comes as its left and right slopes, any
other as numbers; whatever those are made of is differentiated by torch. On the CPU the compiled
core does the work; float64, and devices that have no core, go through torch's own operations, a
chunk of queries at a time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from ntk_alibi import _validation
from ntk_alibi.bias import ALiBi, both_sides, hidden_sides, with_axes
from ntk_alibi.fused_attention import (
    Options,
    attention_gradients,
    checked_masks,
    checked_rule,
    linear_slopes,
    plain_attention,
)
from ntk_alibi.scaling import scaling_from_config
from ntk_alibi.slopes import scaling_per

Tensors: TypeAlias = tuple[torch.Tensor, ...]

#: Queries whose scores exist at one time where torch's own operations do the work.
QUERY_CHUNK = 256

#: Dtypes of the compiled core.
CORE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_INPUTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? left, Tensor? right, Tensor? dense, "
    "Tensor? key_padding_mask, Tensor? query_positions, Tensor? key_positions, bool causal, "
    "int? window, int? causal_block, int sink, float scale, float? skip_tolerance"
)


@torch.library.custom_op(
    "ntk_alibi::attention",
    mutates_args=(),
    device_types="cpu",
    schema=f"({_INPUTS}) -> (Tensor, Tensor)",
)
def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    bias, options = _bias_and_options(query, *rest)
    result: tuple[torch.Tensor, torch.Tensor] = plain_attention(
        query, key, value, bias, Options(**options), return_logsumexp=True
    )
    return result


@_attention.register_fake
def _(query: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return query.new_empty(query.shape), query.new_empty(query.shape[:3], dtype=torch.float32)


@torch.library.custom_op(
    "ntk_alibi::attention_backward",
    mutates_args=(),
    device_types="cpu",
    schema=(
        "(Tensor output_gradient, Tensor? logsumexp_gradient, Tensor output, Tensor logsumexp, "
        f"bool bias_gradient, {_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
)
def _attention_backward(
    output_gradient: torch.Tensor,
    logsumexp_gradient: torch.Tensor | None,
    output: torch.Tensor,
    logsumexp: torch.Tensor,
    bias_gradient: bool,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    left: torch.Tensor | None,
    right: torch.Tensor | None,
    dense: torch.Tensor | None,
    *rest: Any,
) -> Tensors:
    bias, options = _bias_and_options(query, left, right, dense, *rest)
    gradients = attention_gradients(
        query,
        key,
        value,
        output,
        logsumexp,
        output_gradient,
        logsumexp_gradient,
        bias,
        bias_gradient=bias_gradient,
        **options,
    )
    slopes = (
        torch.empty(0) if side is None or not bias_gradient else _summed(gradient, side)
        for gradient, side in ((gradients.left, left), (gradients.right, right))
    )
    full = torch.empty(0) if gradients.dense is None else torch.from_numpy(gradients.dense)
    return (gradients.query, gradients.key, gradients.value, *slopes, full)


def _summed(gradient: Any, slopes: torch.Tensor) -> torch.Tensor:
    """A gradient for each query, (batch, heads, queries), summed to the slopes' shape."""
    axes = tuple(axis for axis in (0, 2) if slopes.shape[axis] == 1 and gradient.shape[axis] != 1)
    return torch.from_numpy(
        np.asarray(gradient, np.float64).sum(axis=axes, keepdims=True).astype(np.float32)
    )


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
    left: torch.Tensor | None,
    right: torch.Tensor | None,
    dense: torch.Tensor | None,
    *_: Any,
) -> Tensors:
    biases = (
        query.new_empty(0 if x is None or not bias_gradient else x.shape, dtype=torch.float32)
        for x in (left, right, dense)
    )
    return (*(x.new_empty(x.shape) for x in (query, key, value)), *biases)


def _bias_and_options(
    query: torch.Tensor,
    left: torch.Tensor | None,
    right: torch.Tensor | None,
    dense: torch.Tensor | None,
    key_padding_mask: torch.Tensor | None,
    query_positions: torch.Tensor | None,
    key_positions: torch.Tensor | None,
    causal: bool,
    window: int | None,
    causal_block: int | None,
    sink: int,
    scale: float,
    skip_tolerance: float | None,
) -> tuple[Any, dict[str, Any]]:
    """Of the operator's inputs, as the functions that call the core take them."""
    bias: Any = None if dense is None else dense.detach()
    if left is not None and right is not None:
        pair = (left.detach(), right.detach())
        bias = ALiBi(query.shape[1], slopes=pair, sides="two_slopes")
    return bias, {
        "causal": causal,
        "window": window,
        "causal_block": causal_block,
        "sink": sink,
        "key_padding_mask": key_padding_mask,
        "query_positions": query_positions,
        "key_positions": key_positions,
        "scale": scale,
        "skip_tolerance": skip_tolerance,
    }


@torch.library.custom_op(
    "ntk_alibi::slopes",
    mutates_args=(),
    schema="(Tensor like, int num_heads, str alibi_type, float factor, str sides)"
    " -> (Tensor, Tensor)",
)
def _constant_slopes(
    like: torch.Tensor, num_heads: int, alibi_type: str, factor: float, sides: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Left and right slopes (1, heads, 1): a constant that tracing would have to look into."""
    config = {"alibi_type": alibi_type} | ({} if alibi_type == "default" else {"factor": factor})
    bias = ALiBi(num_heads, scaling_from_config(config), sides=sides)
    left, right = (torch.tensor(x, device=like.device) for x in bias.left_right(1, None))
    return left, right


@_constant_slopes.register_fake
def _(like: torch.Tensor, num_heads: int, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (1, num_heads, 1)
    return like.new_empty(shape, dtype=torch.float32), like.new_empty(shape, dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:9], *output)
    ctx.options = inputs[9:]


def _differentiate(
    ctx: Any, output_gradient: torch.Tensor | None, logsumexp_gradient: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:
    *inputs, output, logsumexp = ctx.saved_tensors
    if output_gradient is None:
        output_gradient = torch.zeros_like(output)
    biases = ctx.needs_input_grad[3:6]
    gradients = _attention_backward(
        output_gradient, logsumexp_gradient, output, logsumexp, any(biases), *inputs, *ctx.options
    )
    wanted = (
        gradient if needed else None
        for gradient, needed in zip(gradients, ctx.needs_input_grad, strict=False)
    )
    return (*wanted, *[None] * (3 + len(ctx.options)))


_attention.register_autograd(_differentiate, setup_context=_save)


@_attention.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
    results = [
        _attention(
            *(
                x if dim is None or x is None else x.select(dim, i)
                for x, dim in zip(inputs, in_dims, strict=True)
            )
        )
        for i in range(info.batch_size)
    ]
    outputs, logsumexps = zip(*results, strict=True)
    return (torch.stack(outputs), torch.stack(logsumexps)), (0, 0)


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: Any, options: Options
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and logsumexp; arguments as of `ntk_alibi.attention`, of which shapes are checked."""
    device = query.device
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
        query, key, value = (x.to(dtype) for x in (query, key, value))
    shape = (*query.shape[:3], key.shape[2])
    options = checked_rule(options, query.shape[3])
    _validation.attention_bias(bias, shape, causal=options.causal)
    masks = tuple(
        None if x is None else torch.as_tensor(x, device=device)
        for x in (options.key_padding_mask, options.query_positions, options.key_positions)
    )
    left = right = dense = None
    if isinstance(bias, ALiBi):
        left, right = (side.to(device) for side in _slopes(bias, query, shape, options))
    elif bias is not None:
        dense = torch.as_tensor(bias, device=device)
        if dense.requires_grad:  # torch sums over what was broadcast
            dense = dense.expand(shape)
    rule = (options.causal, options.window, options.causal_block, options.sink, options.scale)
    inputs = (query, key, value, left, right, dense)
    if device.type == "cpu" and query.dtype in CORE_DTYPES:
        result: tuple[torch.Tensor, torch.Tensor] = _attention(
            *inputs, *masks, *rule, options.skip_tolerance
        )
        return result
    if device.type == "cpu" and not torch.compiler.is_compiling():
        checked_masks(options, shape)  # numbers on another device stay there
    mask, query_positions, key_positions = masks
    return attention_by_chunks(
        *inputs,
        dataclasses.replace(
            options,
            key_padding_mask=mask,
            query_positions=query_positions,
            key_positions=key_positions,
        ),
    )


def merge(
    outputs: Sequence[torch.Tensor], logsumexps: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """`ntk_alibi.merge` by torch's operations, differentiable, in the logsumexps' precision."""
    logs = torch.stack(tuple(logsumexps))
    some = logs.isfinite().any(dim=0)
    logs = torch.where(some, logs, 0.0)
    weights = (torch.softmax(logs, dim=0) * some)[..., None]
    output = sum(weight * part for weight, part in zip(weights, outputs, strict=True))
    logsumexp = torch.where(some, torch.logsumexp(logs, dim=0), -math.inf)
    return torch.as_tensor(output).to(outputs[0].dtype), logsumexp


def _slopes(
    bias: ALiBi, query: torch.Tensor, shape: tuple[int, ...], options: Options
) -> tuple[torch.Tensor, torch.Tensor]:
    """Left and right slopes as tensors that know where they come from."""
    if bias.slopes is None and torch.compiler.is_compiling():
        _validation.constant_scaling(bias.scaling)
        kind = getattr(bias.scaling, "alibi_type", "default")
        factor = float(getattr(bias.scaling, "factor", 1.0))
        traced: tuple[torch.Tensor, torch.Tensor] = _constant_slopes(
            query.detach(), bias.num_heads, kind, factor, bias.sides
        )
        return traced
    if bias.slopes is None:
        counts = scaling_per(bias.scaling) is not None
        mask, (positions, _) = checked_masks(options, shape) if counts else (None, (None, None))
        left, right = (
            torch.from_numpy(np.array(x)) for x in linear_slopes(bias, shape, mask, positions)
        )
        return left, right
    left, right = (with_axes(torch.as_tensor(x).float()) for x in both_sides(bias.slopes))
    _validation.slope_shapes(tuple(left.shape), tuple(right.shape), shape[2])
    _validation.slope_batch(max(left.shape[0], right.shape[0]), shape[0])
    hidden = torch.as_tensor(hidden_sides(bias.sides, bias.num_heads), device=left.device)
    return left.masked_fill(hidden[0], math.inf), right.masked_fill(hidden[1], math.inf)


def attention_by_chunks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    left: torch.Tensor | None,
    right: torch.Tensor | None,
    dense: torch.Tensor | None,
    options: Options,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by torch's own operations, on any device and in float64 too; skips nothing.

    Scores of QUERY_CHUNK queries exist at one time, in the backward pass too. options.scale is
    given.
    """
    queries = query.shape[2]
    query_positions, key_positions = _positions(query, key, options)
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, dim=1) if group > 1 else x for x in (key, value))

    def attend(begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        def part(x: torch.Tensor | None) -> torch.Tensor | None:
            if x is dense:
                return x if x is None or x.ndim < 2 or x.shape[-2] == 1 else x[..., begin:end, :]
            return x if x is None or x.shape[2] == 1 else x[:, :, begin:end]

        positions = query_positions[..., begin:end], key_positions
        biases = part(left), part(right), part(dense)
        return _attend_chunk(query[:, :, begin:end], key, value, biases, positions, options)

    chunks = []
    for begin in range(0, max(queries, 1), QUERY_CHUNK):
        end = min(begin + QUERY_CHUNK, queries)
        chunks.append(
            checkpoint(attend, begin, end, use_reentrant=False)
            if torch.is_grad_enabled()
            else attend(begin, end)
        )
    outputs, logsumexps = zip(*chunks, strict=True)
    return torch.cat(outputs, dim=2), torch.cat(logsumexps, dim=2)


def _positions(
    query: torch.Tensor, key: torch.Tensor, options: Options
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of queries and keys, (length,) or (batch, length)."""
    queries, keys = query.shape[2], key.shape[2]
    key_positions, query_positions = options.key_positions, options.query_positions
    if key_positions is None:
        key_positions = torch.arange(keys, device=query.device)
        if query_positions is None:
            query_positions = torch.arange(keys - queries, keys, device=query.device)
    elif query_positions is None:
        query_positions = key_positions[..., keys - queries :]
    return query_positions, key_positions


def _attend_chunk(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    biases: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None],
    positions: tuple[torch.Tensor, torch.Tensor],
    options: Options,
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    q, k = (x[None, None] if x.ndim == 1 else x[:, None] for x in positions)
    distance = q[..., :, None] - k[..., None, :]
    visible = _visible(q, k, distance, options)
    bias, visible = _bias_and_visible(biases, distance, visible, dtype)
    seen = visible.any(dim=2)[..., None]  # what nobody sees may be NaN
    key, value = (torch.where(seen, x, 0.0).to(dtype) for x in (key, value))
    scores = float(options.scale or 0.0) * query.to(dtype) @ key.transpose(-1, -2) + bias
    some = visible.any(dim=-1).expand(scores.shape[:-1])
    scores = torch.where(some[..., None], scores.masked_fill(~visible, -math.inf), 0.0)
    logsumexp = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - logsumexp[..., None]) * some[..., None]
    return (weights @ value).to(query.dtype), torch.where(some, logsumexp, -math.inf)


def _bias_and_visible(
    biases: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None],
    distance: torch.Tensor,
    visible: torch.Tensor,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The bias with 0 where it is infinite, which hides, and what is still visible."""
    left, right, dense = biases
    if left is not None and right is not None:
        behind, ahead = distance > 0, distance < 0
        hidden = (left.isinf()[..., None] & behind) | (right.isinf()[..., None] & ahead)
        left, right = (x.masked_fill(x.isinf(), 0.0).to(dtype)[..., None] for x in (left, right))
        return torch.where(behind, -left, right) * distance, visible & ~hidden
    if dense is not None:
        none = dense.isneginf()
        return dense.masked_fill(none, 0.0).to(dtype), visible & ~none
    return torch.zeros((), dtype=dtype, device=distance.device), visible


def _visible(
    query_positions: torch.Tensor,
    key_positions: torch.Tensor,
    distance: torch.Tensor,
    options: Options,
) -> torch.Tensor:
    """Which keys each query sees, (1 or batch, 1, queries, keys)."""
    seen = torch.ones_like(distance, dtype=torch.bool)
    if options.window is not None:
        seen = distance.abs() < options.window
    if options.causal_block is not None:
        own, other = (
            x.div(options.causal_block, rounding_mode="floor")
            for x in (query_positions, key_positions)
        )
        seen = seen & (own[..., :, None] - other[..., None, :] <= 1)
    if options.sink:
        seen = seen | ((key_positions < options.sink)[..., None, :] & (distance >= 0))
    if options.causal:
        seen = seen & (distance >= 0)
    if options.key_padding_mask is not None:
        seen = seen & options.key_padding_mask.bool()[:, None, None, :]
    return seen

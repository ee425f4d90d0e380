"""`ntk_alibi.attention` for tensors that need more than their numbers: an operator of torch.

The operator takes tensors and plain numbers. A bias comes as the kernels take it, as slopes, a
table, running sums or plain numbers; whatever those are made of is differentiated by torch. On the
CPU the compiled core does the work; float64, and devices that have no core, go through torch's own
operations, a chunk of queries at a time.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from ntk_alibi import _arrays, _validation
from ntk_alibi.attention_gradients import attention_gradients
from ntk_alibi.bialibi import BiALiBi
from ntk_alibi.bias import ALiBi, both_sides, hidden_sides, with_axes
from ntk_alibi.core_call import Options, checked_problem, checked_rule
from ntk_alibi.distance_bias import DistanceBias
from ntk_alibi.forget_gates import ForgetGates
from ntk_alibi.kernel_bias import KernelBias, Problem
from ntk_alibi.plain_attention import first_positions, plain_attention, prepared
from ntk_alibi.rotary_attention import attend_rotated, needs_rotation
from ntk_alibi.scaling import scaling_from_config
from ntk_alibi.slopes import scaling_per

Tensors: TypeAlias = tuple[torch.Tensor, ...]

#: Queries whose scores exist at one time where torch's own operations do the work.
QUERY_CHUNK = 256

#: Dtypes of the compiled core.
CORE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

#: The tensors of a bias, in the operator's order.
BIAS_TENSORS = ("left", "right", "first", "table", "sums", "dense")

_INPUTS = (
    "Tensor query, Tensor key, Tensor value, "
    + "".join(f"Tensor? {name}, " for name in BIAS_TENSORS)
    + "Tensor? key_padding_mask, Tensor? query_positions, Tensor? key_positions, "
    "int table_begin, int exempt, bool causal, int? window, int? causal_block, int sink, "
    "float scale, float? skip_tolerance"
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
    bias, options = _bias_and_options(*rest)
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
        f"bool bias_gradient, {_INPUTS}) -> ({', '.join(['Tensor'] * (3 + len(BIAS_TENSORS)))})"
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
    *rest: Any,
) -> Tensors:
    bias, options = _bias_and_options(*rest)
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
    ofs = (
        _summed(getattr(gradients, name), tensor, batched=name != "table")
        for name, tensor in zip(BIAS_TENSORS, rest, strict=False)
    )
    return (gradients.query, gradients.key, gradients.value, *ofs)


def _summed(gradient: Any, tensor: torch.Tensor | None, *, batched: bool) -> torch.Tensor:
    """A gradient, (batch, heads, ...) if batched, summed to the shape of what it is of."""
    if gradient is None or tensor is None:
        return torch.empty(0)
    if not batched:
        return torch.from_numpy(gradient).to(_wide(tensor))
    shape = tuple(tensor.shape) if tensor.ndim > 1 else (1, *tensor.shape, 1)
    axes = tuple(i for i, size in enumerate(shape) if size == 1 and gradient.shape[i] != 1)
    if axes:
        gradient = np.asarray(gradient, np.float64).sum(axis=axes, keepdims=True)
    return torch.from_numpy(gradient.reshape(tensor.shape)).to(_wide(tensor))


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
        else x.new_empty(x.shape, dtype=_wide(x))
        for x in rest[: len(BIAS_TENSORS)]
    )
    return (*(x.new_empty(x.shape) for x in (query, key, value)), *biases)


def _bias_and_options(*inputs: Any) -> tuple[KernelBias, dict[str, Any]]:
    """Of the operator's inputs but the first three, as the functions that call the core take them.

    Tensors as they come: the core reads their memory.
    """
    tensors, rest = inputs[: len(BIAS_TENSORS)], inputs[len(BIAS_TENSORS) :]
    arrays = (None if x is None else _arrays.to_numpy(x) for x in tensors)
    mask, query_positions, key_positions, table_begin, exempt, *rule = rest
    names = ("causal", "window", "causal_block", "sink", "scale", "skip_tolerance")
    bias = KernelBias(
        **dict(zip(BIAS_TENSORS, arrays, strict=True)), table_begin=table_begin, exempt=exempt
    )
    return bias, {
        "key_padding_mask": mask,
        "query_positions": query_positions,
        "key_positions": key_positions,
        **dict(zip(names, rule, strict=True)),
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
    tensors = 6 + len(BIAS_TENSORS)
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
    if needs_rotation(options):
        return _rotated_attention(query, key, value, bias, options)
    shape = (*query.shape[:3], key.shape[2])
    options = checked_rule(options, query.shape[3])
    _validation.attention_bias(bias, shape, causal=options.causal)
    masks = tuple(
        None if x is None else torch.as_tensor(x, device=device)
        for x in (options.key_padding_mask, options.query_positions, options.key_positions)
    )
    tensors = _kernel_bias(bias, query, shape, options)
    if masks[1] is None and options.align == "start":
        masks = (masks[0], first_positions(query, masks[2]), masks[2])
    rule = (options.causal, options.window, options.causal_block, options.sink, options.scale)
    if device.type == "cpu" and query.dtype in CORE_DTYPES:
        result: tuple[torch.Tensor, torch.Tensor] = _attention(
            query,
            key,
            value,
            *(getattr(tensors, name) for name in BIAS_TENSORS),
            *masks,
            tensors.table_begin,
            tensors.exempt,
            *rule,
            options.skip_tolerance,
        )
        return result
    if device.type == "cpu" and not torch.compiler.is_compiling():
        checked_problem(options, shape)  # numbers on another device stay there
    mask, query_positions, key_positions = masks
    return attention_by_chunks(
        query,
        key,
        value,
        tensors,
        options._replace(
            key_padding_mask=mask,
            query_positions=query_positions,
            key_positions=key_positions,
        ),
    )


def _kernel_bias(
    bias: Any, query: torch.Tensor, shape: tuple[int, ...], options: Options
) -> KernelBias:
    """A bias as the kernels take it, as tensors that know where they come from."""
    if isinstance(bias, ALiBi):
        left, right = (side.to(query.device) for side in _slopes(bias, query, shape, options))
        return KernelBias(left=left, right=right, exempt=bias.exempt)
    if isinstance(bias, BiALiBi):
        first, left, right = (
            torch.as_tensor(np.array(x) if isinstance(x, np.ndarray) else x).to(
                query.device, _wide(query)
            )
            for x in (bias.first, bias.left, bias.right)
        )
        return KernelBias(left=with_axes(left), right=with_axes(right), exempt=1, first=first)
    if isinstance(bias, DistanceBias):
        return _table(bias, query, _problem(options, shape, lengths_only=True))
    if isinstance(bias, ForgetGates):
        sums = bias.running_sums(_problem(options, shape), query)
        return KernelBias(sums=sums)
    if bias is None:
        return KernelBias()
    dense = torch.as_tensor(bias, device=query.device)
    if dense.requires_grad:  # torch sums over what was broadcast
        dense = dense.expand(shape)
    return KernelBias(dense=dense)


def _rotated_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: Any, options: Options
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of queries and keys that are rotated first, which autocast must not round."""
    bias, options = prepared(query, key, bias, options)
    with torch.autocast(query.device.type, enabled=False):
        outputs, logsumexps = attend_rotated(attention, query, key, value, bias, options)
    return torch.cat(outputs, dim=2).to(query.dtype), torch.cat(logsumexps, dim=2)


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
        numbers = bias.kernel_bias(checked_problem(options, shape) if counts else Problem(shape))
        return torch.from_numpy(np.array(numbers.left)), torch.from_numpy(np.array(numbers.right))
    left, right = (with_axes(torch.as_tensor(x).to(_wide(query))) for x in both_sides(bias.slopes))
    _validation.slope_shapes(tuple(left.shape), tuple(right.shape), shape[2])
    _validation.slope_batch(max(left.shape[0], right.shape[0]), shape[0])
    hidden = torch.as_tensor(hidden_sides(bias.sides, bias.num_heads), device=left.device)
    return left.masked_fill(hidden[0], math.inf), right.masked_fill(hidden[1], math.inf)


def _wide(tensor: torch.Tensor) -> torch.dtype:
    """float64 for that, else float32: in which biases are added, and have their gradients."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _problem(options: Options, shape: tuple[int, ...], *, lengths_only: bool = False) -> Problem:
    """The checked problem, of which tracing knows only the lengths."""
    if not torch.compiler.is_compiling():
        return checked_problem(options, shape)
    if lengths_only:
        _validation.known_positions(options.query_positions, options.key_positions)
    rule = (options.causal, options.window, options.causal_block, options.sink, options.align)
    placed = options.query_positions is not None
    return Problem(shape, *rule, mask=options.key_padding_mask, placed=placed)


def _table(bias: DistanceBias, query: torch.Tensor, problem: Problem) -> KernelBias:
    first, last = problem.distances()
    _validation.span((first, last))
    constant = not any(isinstance(x, torch.Tensor) for x in bias.parameters)
    if constant and not torch.compiler.is_compiling() and query.dtype != torch.float64:
        kept = bias.kernel_bias(problem)
        table = torch.tensor(kept.table, device=query.device)
    else:
        table = bias.over(first, last, query).to(_wide(query))
    return KernelBias(table=table, table_begin=first)


def attention_by_chunks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: KernelBias,
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
        positions = query_positions[..., begin:end], key_positions
        own = _of_queries(bias, begin, end, queries)
        return _attend_chunk(query[:, :, begin:end], key, value, own, positions, options)

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


def _of_queries(bias: KernelBias, begin: int, end: int, queries: int) -> KernelBias:
    """The bias of some of the queries; running sums as their differences."""

    def part(x: torch.Tensor | None) -> torch.Tensor | None:
        return x if x is None or x.shape[2] == 1 else x[:, :, begin:end]

    dense, sums = bias.dense, bias.sums
    if dense is not None and dense.ndim > 1 and dense.shape[-2] != 1:
        dense = dense[..., begin:end, :]
    if sums is not None:
        first = sums.shape[2] - queries
        sums = sums[..., first + begin : first + end, None] - sums[..., None, :]
        return KernelBias(dense=sums)
    return bias._replace(left=part(bias.left), right=part(bias.right), dense=dense)


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
    bias: KernelBias,
    positions: tuple[torch.Tensor, torch.Tensor],
    options: Options,
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    q, k = (x[None, None] if x.ndim == 1 else x[:, None] for x in positions)
    distance = q[..., :, None] - k[..., None, :]
    visible = _visible(q, k, distance, options)
    numbers, visible = _bias_and_visible(bias, (q, k), distance, visible, dtype)
    seen = visible.any(dim=2)[..., None]  # what nobody sees may be NaN
    key, value = (torch.where(seen, x, 0.0).to(dtype) for x in (key, value))
    scores = float(options.scale or 0.0) * query.to(dtype) @ key.transpose(-1, -2) + numbers
    some = visible.any(dim=-1).expand(scores.shape[:-1])
    scores = torch.where(some[..., None], scores.masked_fill(~visible, -math.inf), 0.0)
    logsumexp = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - logsumexp[..., None]) * some[..., None]
    return (weights @ value).to(query.dtype), torch.where(some, logsumexp, -math.inf)


def _bias_and_visible(
    bias: KernelBias,
    positions: tuple[torch.Tensor, torch.Tensor],
    distance: torch.Tensor,
    visible: torch.Tensor,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The bias with 0 where it is infinite, which hides, and what is still visible."""
    left, right, dense = bias.left, bias.right, bias.dense
    if left is not None:
        behind, ahead = distance > 0, distance < 0
        hidden = (left.isinf()[..., None] & behind) | (right.isinf()[..., None] & ahead)
        left, right = (x.masked_fill(x.isinf(), 0.0).to(dtype)[..., None] for x in (left, right))
        numbers = torch.where(behind, -left, right) * distance
        if bias.exempt:
            q, k = positions
            exempt = (q[..., :, None] < bias.exempt) | (k[..., None, :] < bias.exempt)
            constant: Any = 0.0 if bias.first is None else -bias.first.to(dtype)[:, None, None]
            numbers = torch.where(exempt, torch.where(distance == 0, 0.0, constant), numbers)
        return numbers, visible & ~hidden
    size = 0 if bias.table is None else bias.table.shape[1]
    if size:  # else nothing is visible
        index = (distance[:, 0] - bias.table_begin).clamp(0, size - 1)  # others are not visible
        dense = bias.table[:, index].transpose(0, 1)
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

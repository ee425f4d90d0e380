"""`ntk_alibi.attention` for tensors that need more than their numbers: an operator of torch.

The operator takes tensors and plain numbers. A bias comes as the kernels take it, as slopes, a
table, running sums or plain numbers; whatever those are made of is differentiated by torch. On the
CPU the compiled core does the work; float64, and devices that have no core, go through torch's own
operations, a chunk of queries at a time.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch

from ntk_alibi import _arrays
from ntk_alibi.biases.base import KernelBias
from ntk_alibi.fused import checks as fused_checks
from ntk_alibi.fused.forward import forward
from ntk_alibi.fused.gradients import attention_gradients
from ntk_alibi.fused.options import Options, checked_options, checked_problem
from ntk_alibi.fused.rotated import attend_rotated, needs_rotation, resolve_dynamic_slopes
from ntk_alibi.masks import first_positions
from ntk_alibi.torch.bias_tensors import bias_tensors, wide_dtype
from ntk_alibi.torch.chunks import attention_by_chunks

Tensors: TypeAlias = tuple[torch.Tensor, ...]

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
    result: tuple[torch.Tensor, torch.Tensor] = forward(
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
        return torch.from_numpy(gradient).to(wide_dtype(tensor))
    shape = tuple(tensor.shape) if tensor.ndim > 1 else (1, *tensor.shape, 1)
    axes = tuple(i for i, size in enumerate(shape) if size == 1 and gradient.shape[i] != 1)
    if axes:
        gradient = np.asarray(gradient, np.float64).sum(axis=axes, keepdims=True)
    return torch.from_numpy(gradient.reshape(tensor.shape)).to(wide_dtype(tensor))


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
        else x.new_empty(x.shape, dtype=wide_dtype(x))
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
    options = checked_options(options, query.shape[3])
    fused_checks.attention_bias(bias, shape, causal=options.causal)
    masks = tuple(
        None if x is None else torch.as_tensor(x, device=device)
        for x in (options.key_padding_mask, options.query_positions, options.key_positions)
    )
    tensors = bias_tensors(bias, query, shape, options)
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


def _rotated_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: Any, options: Options
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of queries and keys that are rotated first, which autocast must not round."""
    bias, options = resolve_dynamic_slopes(query, key, bias, options)
    with torch.autocast(query.device.type, enabled=False):
        outputs, logsumexps = attend_rotated(attention, query, key, value, bias, options)
    return torch.cat(outputs, dim=2).to(query.dtype), torch.cat(logsumexps, dim=2)

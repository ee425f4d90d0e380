"""The attention of a layer as one operator of torch, by which a compiled model is one graph.

It is for passes without a cache, in torch.compile. The operator gets the padding, and the first
layer makes the pass of it while the graph runs. Its gradients are of query, key and value.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch

from ntk_alibi._torch_state import is_transformed
from ntk_alibi.integrations.tokens import Tokens

_unused_keys = itertools.count()
_layers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def register(attend: Any) -> int:
    """Return the key by which the operator finds the attention of a layer."""
    key = next(_unused_keys)
    _layers[key] = attend
    return key


def fits(attend: Any, query: Any, mask: Any, cache: Any, dropout: float, weights: Any) -> bool:
    """Return whether the operator can compute a call of a layer that Dynamo traces."""
    if torch.compiler.is_exporting() or is_transformed(maps=True):
        return False
    if torch.is_grad_enabled():
        in_core = query.is_cpu and query.dtype is not torch.float64
        if attend.may_learn or not in_core:
            return False
    if cache is not None or dropout or weights:
        return False
    if isinstance(mask, Tokens):
        of_keys = getattr(mask.padding, "ndim", 2) == 2
        return of_keys and mask.segments is mask.forward_pass is None and not mask.weights
    return attend.family.code is None


@torch.library.custom_op(
    "ntk_alibi::layer_attention",
    mutates_args=(),
    schema=(
        "(Tensor query, Tensor key, Tensor value, Tensor? padding, int layer, float? scale)"
        " -> Tensor"
    ),
)
def layer_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    padding: torch.Tensor | None,
    layer: int,
    scale: float | None,
) -> torch.Tensor:
    """Return the output of a layer, by the key that `register` gave it."""
    attend = _layers[layer]
    sizes = query.shape[0], query.shape[2], key.shape[2]
    tokens = attend.tokens_of(padding, sizes, query.device)
    inputs = (x.detach() for x in (query, key, value))
    with torch.no_grad():
        output: torch.Tensor = attend(*inputs, mask=tokens, scale=scale)[0]
    return output.contiguous()


@layer_attention.register_fake
def _(query: torch.Tensor, _: Any, value: torch.Tensor, *__: Any) -> torch.Tensor:
    return value.new_empty((*query.shape[:3], value.shape[3]))


@torch.library.custom_op(
    "ntk_alibi::layer_attention_backward",
    mutates_args=(),
    schema=(
        "(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor? padding, int layer,"
        " float? scale) -> (Tensor, Tensor, Tensor)"
    ),
)
def layer_attention_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    padding: torch.Tensor | None,
    layer: int,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of a layer's query, key and value."""
    attend = _layers[layer]
    inputs = (x.detach() for x in (query, key, value))
    gradients: Any = attend.gradients(gradient, *inputs, padding, scale)
    return tuple(gradients)


@layer_attention_backward.register_fake
def _(_: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *__: Any) -> Any:
    return tuple(x.new_empty(x.shape) for x in (query, key, value))


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    *tensors, ctx.layer, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    saved = ctx.saved_tensors
    return *layer_attention_backward(gradient, *saved, ctx.layer, ctx.scale), None, None, None


layer_attention.register_autograd(_differentiate, setup_context=_save)

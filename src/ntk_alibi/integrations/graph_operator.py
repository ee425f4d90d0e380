"""The attention of a layer as one operator of torch, by which a compiled model is one graph.

It is for passes without gradients and without a cache, in torch.compile. The operator gets the
padding, and the first layer makes the pass of it while the graph runs.
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


def fits(attend: Any, mask: Any, cache: Any, dropout: float, weights: Any) -> bool:
    """Return whether the operator can compute a call of a layer that Dynamo traces."""
    if torch.compiler.is_exporting() or torch.is_grad_enabled() or is_transformed(maps=True):
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
    output: torch.Tensor = attend(query, key, value, mask=tokens, scale=scale)[0]
    return output.contiguous()


@layer_attention.register_fake
def _(query: torch.Tensor, _: Any, value: torch.Tensor, *__: Any) -> torch.Tensor:
    return value.new_empty((*query.shape[:3], value.shape[3]))

"""The attention of a layer as one operator of torch, by which a compiled model is one graph.

It is for torch.compile, without a cache or with one of transformers, which the graph itself
updates. The operator gets the mask, and the first layer makes the pass of it while the graph runs.
Its gradients are of query, key, value and the rows of the layer's table.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, cast

import torch

from ntk_alibi._torch_state import is_transformed
from ntk_alibi.fused.dropout import checked_dropout
from ntk_alibi.fused.tensors.dropout import to_seed
from ntk_alibi.integrations.caches import Bounded, ReadAsHeld
from ntk_alibi.integrations.tokens import Tokens

_unused = itertools.count()

#: The patch in force of each model, by the key that graphs have for the model.
_patches: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def key_for(patch: Any, key: int | None = None) -> int:
    """Return the key by which graphs find a patch: a new one, or the key of the one before."""
    key = next(_unused) if key is None else key
    _patches[key] = patch
    return key


def fits(attend: Any, query: Any, mask: Any, cache: Any, dropout: float, weights: Any) -> bool:
    """Return whether the operator can compute a call of a layer that Dynamo traces."""
    if torch.compiler.is_exporting() or is_transformed(maps=True):
        return False
    if weights or isinstance(cache, ReadAsHeld | Bounded):
        return False
    overwritten = getattr(cache, "is_compileable", False)  # a static cache
    if dropout and (overwritten or attend.is_eager(weights)):
        return False
    if torch.is_grad_enabled():
        in_core = query.is_cpu and query.dtype is not torch.float64
        if attend.patch.settings.bias is not None or overwritten or not in_core:
            return False
    if isinstance(mask, Tokens):
        return not mask.weights and mask.forward_pass is None
    return not attend.patch.hands_over


def attend_in_graph(
    attend: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    cache: Any,
    scale: float | None,
    dropout: float,
) -> torch.Tensor:
    """Return the output of a layer that Dynamo traces; a cache gets the new keys before."""
    mask, end = mask.mask if isinstance(mask, Tokens) else mask, None
    if cache is not None:
        key, value = cache.update(key, value, attend.number)
        end = cache.get_seq_length(attend.number)
        if not isinstance(end, torch.Tensor):
            end = torch.full((), end, dtype=torch.int64)
    rows = None
    if attend.table is not None and torch.is_grad_enabled():
        rows = attend.table.table.rows(query.device)
        rows = rows if rows.requires_grad else None
    seed = to_seed(checked_dropout(dropout, None, query, key.shape[2]))
    tensors = query, key, value, mask, end, rows, seed
    place = attend.patch.key, attend.number, attend.crosses
    results = _layer_attention(*tensors, *place, scale, float(dropout))
    return cast(torch.Tensor, results[0])


def _found(key: int, number: int, crosses: bool, serial: int | None = None) -> Any:
    """Return the `Attend` of a layer by the patch in force, which must have the serial number."""
    patch = _patches.get(key)
    if patch is None or not patch.in_force or serial not in (None, patch.serial):
        raise ValueError(
            "the patch must stay as it is until the backward pass of a compiled model is done, "
            "which computes weights again: call backward() inside of the patch"
        )
    return patch.numbered[number, crosses]


class Updated:
    """A cache of transformers with all keys of a pass, which a graph has updated before."""

    def __init__(self, key: torch.Tensor, value: torch.Tensor, past: int) -> None:
        self._held, self._past = (key, value), past

    def update(self, _: Any, __: Any, ___: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all keys and values, with the empty places of a static cache."""
        return self._held

    def get_seq_length(self, _: int = 0) -> int:
        """Return the number of tokens before the pass."""
        return self._past

    def get_mask_sizes(self, _: int, __: int = 0) -> tuple[int, int]:
        """Return the number of places, and the first one."""
        return self._held[0].shape[2], 0


def _inputs(
    attend: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, end: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Updated | None]:
    """Return query, the new keys and values, and the cache or None; autograd follows none."""
    query, key, value = (x.detach() for x in (query, key, value))
    if end is None:
        return query, key, value, None
    seen = slice(0 if attend.crosses else int(end) - query.shape[2], int(end))
    cache = Updated(key, value, seen.start)
    return query, key[:, :, seen], value[:, :, seen], cache


def _constants(
    seed: torch.Tensor | None, rows: torch.Tensor | None
) -> tuple[int | None, torch.Tensor | None]:
    """Return the seed as an integer, and rows that autograd does not follow."""
    return None if seed is None else int(seed), None if rows is None else rows.detach()


_SCHEMA = (
    "Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? end, Tensor? rows, "
    "Tensor? seed, int patch, int number, bool crosses, float? scale, float dropout"
)


@torch.library.custom_op(
    "ntk_alibi::layer_attention", mutates_args=(), schema=f"({_SCHEMA}) -> (Tensor, Tensor)"
)
def _layer_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    end: torch.Tensor | None,
    rows: torch.Tensor | None,
    seed: torch.Tensor | None,
    patch: int,
    number: int,
    crosses: bool,
    scale: float | None,
    dropout: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output of a layer, and the number of its patch.

    Args:
        query: (batch, heads, queries, head_dim), the last query at the last key.
        key: (batch, key heads, keys, head_dim): all keys, with the empty places of a static cache.
        value: as key.
        mask: the mask of keys or of pairs, or None.
        end: the number of tokens that the cache has seen with these, or None without a cache.
        rows: the rows of the layer's table, where autograd follows them, or None.
        seed: the seed of dropout, or None without.
        patch: the key that `key_for` gave the patch.
        number: the number of the layer.
        crosses: whether it attends to other states.
        scale: the factor of the products, or None.
        dropout: the probability of dropping a weight.
    """
    attend = _found(patch, number, crosses)
    query, key, value, cache = _inputs(attend, query, key, value, end)
    sizes = query.shape[0], query.shape[2], key.shape[2]
    tokens = attend.tokens_of(mask, sizes, query.device, cache)
    with torch.no_grad():
        output: torch.Tensor = attend.compute(
            query, key, value, tokens, cache, scale, False, dropout, *_constants(seed, rows)
        )[0]
    return output.contiguous(), torch.tensor(attend.patch.serial)


@_layer_attention.register_fake
def _(query: torch.Tensor, _: Any, value: torch.Tensor, *__: Any) -> Any:
    output = value.new_empty((*query.shape[:3], value.shape[3]))
    return output, torch.empty((), dtype=torch.int64, device="cpu")


@torch.library.custom_op(
    "ntk_alibi::layer_attention_backward",
    mutates_args=(),
    schema=f"(Tensor gradient, Tensor serial, {_SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _layer_attention_backward(
    gradient: torch.Tensor, serial: torch.Tensor, *given: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of a layer's query, of all keys and values, and of its rows.

    Raises:
        ValueError: the patch is another one than in the forward pass.
    """
    query, key, value, mask, end, rows, seed, patch, number, crosses, scale, dropout = given
    attend = _found(patch, number, crosses, int(serial))
    inputs = _inputs(attend, query, key, value, end)
    others = mask, scale, dropout, *_constants(seed, rows)
    *gradients, of_rows = attend.gradients(gradient, *inputs, *others)
    return *gradients, query.new_empty(0) if of_rows is None else of_rows


@_layer_attention_backward.register_fake
def _(_: Any, __: Any, *inputs: Any) -> Any:
    rows = inputs[0].new_empty(0) if inputs[5] is None else inputs[5]
    return tuple(x.new_empty(x.shape) for x in (*inputs[:3], rows))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    ctx.save_for_backward(output[1], *inputs[:7])
    ctx.others = inputs[7:]


def _differentiate(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
    found = _layer_attention_backward(gradient, *ctx.saved_tensors, *ctx.others)
    *of_inputs, of_rows = found
    return *of_inputs, None, None, of_rows if ctx.needs_input_grad[5] else None, *[None] * 6


_layer_attention.register_autograd(_differentiate, setup_context=_save)

"""The attention of a layer as one operator of torch, by which a compiled model is one graph.

It is for torch.compile, without a cache or with one of transformers, which the graph itself
updates. The operator gets the mask, and the first layer makes the pass of it while the graph runs.
Its gradients are of query, key, value and the rows of the layer's table.
"""

from __future__ import annotations

import itertools
import weakref
from functools import partial
from typing import Any, cast

import torch

from ntk_alibi._torch_state import is_transformed
from ntk_alibi.fused.dropout import checked_dropout
from ntk_alibi.fused.tensors.dropout import to_seed
from ntk_alibi.integrations.caches import Bounded, ReadAsHeld
from ntk_alibi.integrations.forward_pass import LayerCall
from ntk_alibi.integrations.tokens import ANOTHER_PATCH, Tokens

_unused = itertools.count()

#: The last patch of each model that lives, by the key that graphs have for the model. Dynamo reads
#: a dict of weak references.
_patches: dict[int, weakref.ref[Any]] = {}


def key_for(patch: Any, key: int | None = None) -> int:
    """Return the key by which graphs find a patch: a new one, or the key of the one before."""
    key = next(_unused) if key is None else key
    _patches[key] = weakref.ref(patch, partial(_forget, key))
    return key


def _forget(key: int, reference: weakref.ref[Any]) -> None:
    """Take away the entry of a patch that is gone, unless its model has another one."""
    if _patches.get(key) is reference:
        del _patches[key]


def in_force() -> list[Any]:
    """Return all patches in force."""
    patches = [reference() for reference in list(_patches.values())]
    return [patch for patch in patches if patch is not None and patch.in_force]


def fits(attend: Any, call: LayerCall) -> bool:
    """Return whether the operator can compute a call of a layer that Dynamo traces."""
    if attend.patch.traceable or torch.compiler.is_exporting() or is_transformed(maps=True):
        return False
    if call.weights or isinstance(call.cache, ReadAsHeld | Bounded):
        return False
    overwritten = getattr(call.cache, "is_compileable", False)  # a static cache
    if call.dropout and (overwritten or attend.is_eager(call.weights)):
        return False
    if torch.is_grad_enabled():
        in_core = call.query.is_cpu and call.query.dtype is not torch.float64
        if attend.patch.settings.bias is not None or overwritten or not in_core:
            return False
    if isinstance(call.mask, Tokens):
        return not call.mask.weights and call.mask.forward_pass is None
    return not attend.patch.hands_over


def attend_in_graph(attend: Any, call: LayerCall) -> torch.Tensor:
    """Return the output of a layer that Dynamo traces; a cache gets the new keys before."""
    query, key, value, mask, end = *call[:4], None
    mask = mask.mask if isinstance(mask, Tokens) else mask
    if call.cache is not None:
        key, value = call.cache.update(key, value, attend.index)
        end = call.cache.get_seq_length(attend.index)
        if not isinstance(end, torch.Tensor):
            end = torch.full((), end, dtype=torch.int64)
    rows = None
    if attend.table is not None and torch.is_grad_enabled():
        rows = attend.table.rows(query.device)
        rows = rows if rows.requires_grad else None
    seed = to_seed(checked_dropout(call.dropout, None, query, key.shape[2]))
    tensors = query, key, value, mask, end, rows, seed
    place = attend.patch.key, attend.number, attend.crosses
    results = _layer_attention(*tensors, *place, call.scale, float(call.dropout))
    return cast(torch.Tensor, results[0])


def _found(key: int, number: int, crosses: bool, serial: int | None = None) -> Any:
    """Return the `Attend` of a layer by the patch in force, which must have the serial number."""
    reference = _patches.get(key)
    patch = None if reference is None else reference()
    if patch is None or not patch.in_force or serial not in (None, patch.serial):
        raise ValueError(ANOTHER_PATCH)
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


def _call_of(attend: Any, given: tuple[Any, ...]) -> LayerCall:
    """Return the call of which the operator got these arguments; autograd follows none of it."""
    query, key, value, mask, end, rows, seed, _, _, _, scale, dropout = given
    query, key, value = (x.detach() for x in (query, key, value))
    cache = None
    if end is not None:
        seen = slice(0 if attend.crosses else int(end) - query.shape[2], int(end))
        cache = Updated(key, value, seen.start)
        key, value = key[:, :, seen], value[:, :, seen]
    return LayerCall(
        query, key, value, mask, cache, scale, dropout,
        seed=None if seed is None else int(seed), rows=None if rows is None else rows.detach(),
    )  # fmt: skip


#: The arguments of the operator, and of its backward pass after two more:
#:     query: (batch, heads, queries, head_dim), the last query at the last key.
#:     key: (batch, key heads, keys, head_dim): all keys, with the empty places of a static cache.
#:     value: as key.
#:     mask: the mask of keys or of pairs, or None.
#:     end: the number of tokens that the cache has seen with these, or None without a cache.
#:     rows: the rows of the layer's table, where autograd follows them, or None.
#:     seed: the seed of dropout, or None without.
#:     patch, number, crosses: the key that `key_for` gave the patch, and the layer's in `numbered`.
#:     scale: the factor of the products.
#:     dropout: the probability of dropping a weight.
_SCHEMA = (
    "Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? end, Tensor? rows, "
    "Tensor? seed, int patch, int number, bool crosses, float scale, float dropout"
)


@torch.library.custom_op(
    "ntk_alibi::layer_attention", mutates_args=(), schema=f"({_SCHEMA}) -> (Tensor, Tensor)"
)
def _layer_attention(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output of a layer, and the number of its patch."""
    attend = _found(*given[7:10])
    call = _call_of(attend, given)
    with torch.no_grad():
        call = call._replace(mask=attend.tokens_of(call))
        output: torch.Tensor = attend.compute(call)[0]
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
    key, number, crosses = given[7:10]
    attend = _found(key, number, crosses, int(serial))
    *gradients, of_rows = attend.gradients(_call_of(attend, given), gradient)
    return *gradients, given[0].new_empty(0) if of_rows is None else of_rows


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

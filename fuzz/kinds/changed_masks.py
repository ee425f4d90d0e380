"""Masks over memory that has changed, while older masks of it are alive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import ntk_alibi as na
from fuzz.compare import exactly
from fuzz.draw import Draw
from fuzz.drawn.arrays import as_float64
from fuzz.drawn.calls import Call, Wishes, drawn_call
from fuzz.drawn.pair_masks import drawn_pair_mask
from fuzz.kinds.forward import compare_results

#: Tensors over memory, from the memory and an older tensor of it.
OVER_MEMORY: dict[str, Callable[[Any, Any], Any]] = {
    "from_numpy": lambda memory, _: torch.from_numpy(memory),
    "from_dlpack": lambda memory, _: torch.utils.dlpack.from_dlpack(torch.from_numpy(memory)),
    "data": lambda _, older: older.data,
    "view": lambda _, older: older.view(older.shape),
    "set_": lambda _, older: torch.empty(0, dtype=torch.bool).set_(older),
    "the older one": lambda _, older: older,
}


def changed_mask(draw: Draw) -> None:
    """Check calls, and at times their gradients, with masks that share one memory in turn."""
    wishes = Wishes(learned=draw.chance(0.7), poison=False, cheaper=40.0)
    call = drawn_call(draw, wishes)
    while call.places.pairs.mask is not None:
        call = drawn_call(draw, wishes)
    memory = _mask(draw, call).copy()
    tensor = torch.from_numpy(memory)
    kept = [na.BlockMask(tensor if call.form.tensors else memory)]
    for _ in range(draw.integer(2, 3)):
        given: Any = memory
        if call.form.tensors:
            way = draw.one_of(list(OVER_MEMORY))
            given = OVER_MEMORY[way](memory, tensor)
        if draw.chance(0.5):
            given = na.BlockMask(given)
            kept.append(given)
        if call.form.tensors and draw.chance(0.3):  # torch counts its changes
            given = kept[0]
            given.mask.logical_not_()
        _check(draw, call, given, memory.copy())
        memory[...] = drawn_pair_mask(draw, call.sizes, call.places.pairs.distance)
        if draw.chance(0.3):
            kept.pop()
            kept.append(na.BlockMask(tensor if call.form.tensors else memory))


def _mask(draw: Draw, call: Call) -> NDArray[np.bool_]:
    batch, heads, queries, keys = call.sizes.pairs
    mask = drawn_pair_mask(draw, call.sizes, call.places.pairs.distance)
    whole = np.broadcast_to(mask, (batch, heads, queries, keys))
    return np.ascontiguousarray(whole)


def _check(draw: Draw, call: Call, given: Any, mask: NDArray[np.bool_]) -> None:
    """Check a call with a mask, whose bits are these now, and its gradients by a copy's."""
    places = replace(call.places, pairs=replace(call.places.pairs, mask=mask))
    masked = replace(call, places=places, options={**call.options, "mask": given})
    draw.notes.append(masked)
    recorded = call.form.tensors and any(x.requires_grad for x in _parameters(call))
    if not recorded and call.form.tensors and draw.chance(0.5):
        arrays = tuple(x.detach().requires_grad_() for x in call.arrays)
        masked, recorded = replace(masked, arrays=arrays), True
    results = masked.attend(return_logsumexp=True)
    compare_results(masked, tuple(x.detach() if recorded else x for x in results))
    if recorded and any(x.requires_grad for x in masked.arrays):
        found = torch.autograd.grad(results[0].float().sum(), masked.arrays)
        copied = replace(masked, options={**masked.options, "mask": torch.from_numpy(mask)})
        wanted = torch.autograd.grad(copied.attend().float().sum(), copied.arrays)
        for x, y in zip(found, wanted, strict=True):
            exactly("gradient", as_float64(x), as_float64(y))


def _parameters(call: Call) -> tuple[torch.Tensor, ...]:
    return (*call.arrays, *(parameter.tensor for parameter in call.bias.parameters))

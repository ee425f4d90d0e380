"""Passes of rows of one text each, padded or not, after a cache or none."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.nn import functional as F

from ntk_alibi import _checks
from ntk_alibi._torch_state import has_values, is_tracing
from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.integrations.passes.base import Pass
from ntk_alibi.integrations.passes.inputs import PassInputs
from ntk_alibi.integrations.passes.mask_values import check_shape, shown
from ntk_alibi.masks import EVERYTHING, Mask, Problem


def begin(inputs: PassInputs) -> Pass:
    """Return the pass of rows whose mask, if any, says which keys are real."""
    (_, queries, keys), mask, places = inputs.sizes, inputs.mask, inputs.count_places()
    end = inputs.past + keys
    if (
        inputs.attend.table is not None
        and inputs.cache is not None
        and getattr(mask, "ndim", 0) == 2
    ):
        # To transformers the tokens that a decoder's mask does not reach are hidden.
        mask = F.pad(mask, (0, max(end - mask.shape[1], 0)))
    real = real_keys(inputs, mask, end, places)
    at, unpadded = slice(end - queries, end), mask is None and places == end
    problem = problem_of(
        real[:, :end], at, inputs.attend.patch.rule, inputs.limits(end), unpadded=unpadded
    )
    if places > real.shape[1]:
        real = F.pad(real, (0, places - real.shape[1]))
    return Pass(inputs, real, problem)


def real_keys(inputs: PassInputs, mask: Any, keys: int, places: int = 0) -> torch.Tensor:
    """Return a mask of padding as (batch, keys), True if real.

    Args:
        inputs: what the layer got.
        mask: None, a mask (batch, keys) that is not 0 for real keys, or one of keys alone in four
            dimensions, (1 or batch, 1, 1, keys), boolean or of values to add to scores.
        keys: the number of keys that the last query may see.
        places: the number of keys that a static cache has room for; a mask may have columns for
            those behind the last query, too.
    """
    batch, device = inputs.sizes[0], inputs.device
    if mask is None:
        return torch.ones((batch, keys), dtype=torch.bool, device=device)
    name, shape = inputs.name, tuple(mask.shape)
    _checks.check_plain(name, mask)
    if len(shape) == 4 and shape[0] in (1, batch) and shape[1:] == (1, 1, keys):
        return shown(mask, name)[:, 0, 0].to(device).expand(batch, keys)
    if shape != (batch, keys):
        check_shape(mask, name, (batch, keys), places)
    return cast(torch.Tensor, mask.to(device) != 0)


def problem_of(
    real: torch.Tensor,
    at: slice,
    rule: ModelSlopes,
    mask: Mask,
    skipped: torch.Tensor | None = None,
    *,
    unpadded: bool = False,
) -> Problem:
    """Return the problem of rows.

    Args:
        real: (batch, keys), True for real keys.
        at: the columns of the queries, up to the last key.
        rule: the rule of the model's slopes.
        mask: the rule by which queries see positions.
        skipped: (batch,), real tokens that are neither among the keys nor queries, or None: a
            bounded cache evicted them between the sinks and the window.
        unpadded: whether all keys are known to be real. On other devices than the CPU masks are not
            read: the host would have to wait for them. What torch traces has no values to count.
    """
    batch, keys = real.shape
    shape = batch, rule.heads, at.stop - at.start, keys
    plain = not is_tracing()
    plain = plain and (unpadded or (real.is_cpu and has_values(real) and bool(real.all())))
    if plain and skipped is None:
        return Problem(shape, mask)
    if not mask.causal:  # distances between columns; queries see all keys of their row
        return Problem.checked(shape, mask, real, None, None, like=real)
    counts, seen = None, real.cumsum(dim=1)
    if skipped is not None:
        evicted = skipped.to(real.device)[:, None]
        counts = (seen[:, -1:] + evicted)[:, 0]
        if plain and mask == EVERYTHING:
            return Problem(shape, mask, counts=counts)
    columns = torch.arange(keys, device=real.device)
    first = real.int().argmax(dim=1, keepdim=True)
    positions = columns - first if rule.counts_holes else seen - 1
    if skipped is not None and mask != EVERYTHING:
        positions = positions + torch.where(columns < mask.sink, 0, evicted)
    positions = positions.clamp(min=0)
    padding = None if plain else real
    problem = Problem.checked(shape, mask, padding, positions[:, at], positions, like=positions)
    return problem._replace(counts=counts)

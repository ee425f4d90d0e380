"""Passes with a mask of four dimensions, (batch, heads, queries, keys), that the caller gave.

Such a mask alone says what a query sees: it may show keys ahead. Keys that no query sees are
padding, as in a mask of two dimensions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional as F

from ntk_alibi._torch_state import has_values
from ntk_alibi.integrations.passes.base import Pass
from ntk_alibi.integrations.passes.inputs import PassInputs
from ntk_alibi.integrations.passes.mask_values import check_shape, shown
from ntk_alibi.masks import BlockMask, Mask, Problem


def begin(inputs: PassInputs) -> Pass:
    """Return the pass of tokens whose mask alone says which keys each query sees."""
    batch, queries, keys = inputs.sizes
    end, places = inputs.past + keys, inputs.count_places()
    shape = batch, inputs.attend.patch.rule.heads, queries, end
    read = read_pairs(inputs.mask, inputs.name, shape, places)
    holes = inputs.attend.patch.rule.counts_holes
    problem = problem_of_pairs(read, shape, inputs.limits(end), counts_holes=holes)
    forward_pass = Pass(inputs, F.pad(read.real_keys(batch), (0, places - end)), problem)
    if inputs.attend.causal:  # a decoder's bias goes on by the same slope
        forward_pass.ahead = "falling"
    return forward_pass


class PairMask(NamedTuple):
    """What a mask says.

    Attributes:
        visible: the pairs.
        real: (1 or batch, keys), True for keys that a query sees, or None if all are seen.
    """

    visible: BlockMask
    real: torch.Tensor | None

    def real_keys(self, batch: int) -> torch.Tensor:
        """Return `real` for all rows, (batch, keys)."""
        mask = self.visible.mask
        real = mask.new_ones((1, mask.shape[3])) if self.real is None else self.real
        return real.expand(batch, -1)


def read_pairs(mask: torch.Tensor, name: str, sizes: tuple[int, ...], capacity: int) -> PairMask:
    """Return what a mask says.

    Args:
        mask: boolean, True for visible keys, or values to add to scores.
        name: its name in messages.
        sizes: batch, heads, queries and keys of the pass.
        capacity: the number of keys that a static cache has room for; a mask may have columns for
            those behind the last query, too, which it hides.
    """
    check_shape(mask, name, sizes, capacity)
    *_, queries, keys = sizes
    seen = shown(mask, name).detach()
    beyond, seen = seen[..., keys:], seen[..., :keys].expand(*seen.shape[:2], queries, keys)
    if not seen.is_cpu or not has_values(seen):
        return PairMask(BlockMask(seen), None)
    if bool(beyond.any()):
        raise ValueError(
            f"{name} must hide the keys behind the last token, which a cache does not hold yet, "
            f"from column {keys} on, got visible ones"
        )
    real = seen.any(dim=2).any(dim=1)
    return PairMask(BlockMask(seen), None if bool(real.all()) else real)


def problem_of_pairs(
    read: PairMask, shape: tuple[int, ...], limits: Mask, *, counts_holes: bool = True
) -> Problem:
    """Return the problem of a pass with a mask.

    Args:
        read: the mask.
        shape: batch, heads, queries and keys.
        limits: the window of the patch; sinks, and whether queries see keys behind alone.
        counts_holes: whether columns of keys that no query sees count between others.
    """
    batch, _, queries, keys = shape
    real, positions, at_keys = None, None, None
    if read.real is not None:  # a key that no query sees is padding
        real = read.real.expand(batch, keys)
        columns = torch.arange(keys, device=real.device)
        first = real.int().argmax(dim=1, keepdim=True)
        at_keys = (columns - first if counts_holes else real.cumsum(dim=1) - 1).clamp(min=0)
        positions = at_keys[:, keys - queries :]
    like = read.visible.mask
    problem = Problem.checked(shape, limits, real, positions, at_keys, like=like)
    if limits.causal and _sees_ahead(problem, like):
        problem = problem._replace(mask=limits._replace(causal=False))
    return problem._replace(visible=read.visible)


def _sees_ahead(problem: Problem, seen: torch.Tensor) -> bool:
    """Return whether a query may see a key ahead of its position."""
    if not seen.is_cpu or not has_values(seen):
        return True
    at_queries, at_keys = problem.positions(seen)
    ahead = at_keys[:, None] > at_queries[:, :, None]
    return bool((seen & ahead[:, None]).any())

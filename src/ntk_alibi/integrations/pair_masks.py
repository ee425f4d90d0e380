"""Masks of four dimensions, (batch, heads, queries, keys), that callers give to a patched model.

Such a mask alone says what a query sees: it may show keys ahead. Positions are columns, or
position_ids for the families whose positions they are. Keys that no query sees are padding, as in a
mask of two dimensions.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, NamedTuple

import torch

from ntk_alibi._torch_state import has_values
from ntk_alibi.integrations.dense import HIDES
from ntk_alibi.integrations.tokens import version_of
from ntk_alibi.masks import BlockMask, Mask, Problem


class PairMask(NamedTuple):
    """What a mask says.

    Attributes:
        visible: the pairs.
        real: (1 or batch, keys), True for keys that a query sees, or None if all are seen.
        sees_ahead: whether a query may see a key behind its own column.
    """

    visible: BlockMask
    real: torch.Tensor | None
    sees_ahead: bool

    def real_keys(self, batch: int) -> torch.Tensor:
        """Return `real` for all rows, (batch, keys)."""
        mask = self.visible.mask
        real = mask.new_ones((1, mask.shape[3])) if self.real is None else self.real
        return real.expand(batch, -1)


def read_pairs(
    kept: MutableMapping[Any, Any], mask: torch.Tensor, name: str, sizes: tuple[int, ...]
) -> PairMask:
    """Return what a mask says.

    Args:
        kept: what was read of masks, for layers and steps that get them again.
        mask: boolean, True for visible keys, or values to add to scores.
        name: its name in messages.
        sizes: batch, heads, queries and keys of the pass; a mask for a static cache has more
            keys, which it hides.
    """
    of = version_of(mask), sizes
    known: tuple[Any, PairMask] | None = kept.get(mask)
    if known is not None and known[0] == of:
        return known[1]
    _check_shape(mask, name, sizes)
    *_, queries, keys = sizes
    seen = shown(mask, name)[..., :keys].detach()  # a view, which does not keep the mask alive
    seen = seen.expand(*seen.shape[:2], queries, keys)
    read = PairMask(BlockMask(seen), None, sees_ahead=True)
    if seen.is_cpu and has_values(seen):
        ahead = torch.arange(keys) > torch.arange(keys - queries, keys)[:, None]
        real = seen.any(dim=2).any(dim=1)
        sees_ahead = queries > 1 and bool((seen & ahead).any())
        read = PairMask(read.visible, None if bool(real.all()) else real, sees_ahead)
    if of[0] is not None:
        kept[mask] = of, read
    return read


def problem_of_pairs(
    read: PairMask,
    shape: tuple[int, ...],
    limits: Mask,
    positions: torch.Tensor | None = None,
    *,
    counts_holes: bool = True,
) -> Problem:
    """Return the problem of a pass with a mask.

    Args:
        read: the mask.
        shape: batch, heads, queries and keys.
        limits: the window of the patch; sinks, and whether queries see keys behind alone.
        positions: of the queries, (1 or batch, queries), which are the last keys, or None for
            columns.
        counts_holes: whether columns of keys that no query sees count between others.
    """
    batch, _, queries, keys = shape
    limits = limits._replace(causal=limits.causal and not read.sees_ahead)
    real = None if read.real is None else read.real.expand(batch, keys)
    at_keys = None
    if real is not None or positions is not None:
        columns = torch.arange(keys, device=read.visible.mask.device)[None]
        if real is not None:  # a key that no query sees is padding
            first = real.int().argmax(dim=1, keepdim=True)
            columns = columns - first if counts_holes else real.cumsum(dim=1) - 1
            columns = columns.clamp(min=0)
        new = columns[:, keys - queries :] if positions is None else positions
        before = columns[:, : keys - queries]
        rows = max(len(before), len(new))
        positions = new.expand(rows, -1)
        at_keys = torch.cat([before.expand(rows, -1), positions], dim=1)
    like = read.visible.mask
    problem = Problem.checked(shape, limits, real, positions, at_keys, like=like)
    return problem._replace(visible=read.visible)


def shown(mask: torch.Tensor, name: str) -> torch.Tensor:
    """Return where a mask of four dimensions shows a key: True, or 0 among values to add."""
    if mask.dtype == torch.bool:
        return mask
    seen: torch.Tensor = mask == 0
    known = (seen | (mask < HIDES)).all()
    if mask.is_cpu and has_values(known) and not bool(known):
        raise ValueError(
            f"{name} must be 0 for visible keys and below {HIDES:g} for hidden ones, got other "
            "values: a bias is no mask"
        )
    return seen


def _check_shape(mask: torch.Tensor, name: str, sizes: tuple[int, ...]) -> None:
    batch, heads, queries, keys = sizes
    got = tuple(mask.shape)
    fits = got[0] in (1, batch) and got[1] in (1, heads) and got[2] in (1, queries)
    if not fits or got[3] < keys:
        raise ValueError(
            f"{name} must have shape (batch, keys) = ({batch}, {keys}), or, with four dimensions, "
            f"({batch} or 1, {heads} or 1, {queries}, {keys}), got {got}"
        )

"""What the masks of a caller must be: their types, their sizes and their values."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ntk_alibi import _checks
from ntk_alibi._torch_state import has_values
from ntk_alibi.masks import BlockMask

#: Values that a mask adds to scores hide a key below this one: float32 weights are then 0.
HIDES = -1e3

#: The types of arguments that need no further check.
PLAIN = torch.Tensor, type(None)


def check_tensor(name: str, value: Any) -> None:
    """Check that an argument is None or a plain tensor."""
    if type(value) in PLAIN:
        return
    _checks.check_no_block_mask(name, value)
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be None or a tensor, got {_checks.briefly(value)}")
    _checks.check_plain(name, value)


def check_shape(mask: torch.Tensor, name: str, sizes: tuple[int, ...], capacity: int = 0) -> None:
    """Check that a mask, of keys or of pairs, is of the tokens of a pass and its cache.

    Args:
        mask: the mask.
        name: its name in messages.
        sizes: batch, heads, queries and keys of the pass; batch and keys if it is one of keys.
        capacity: the number of keys that a static cache has room for; a mask may have columns for
            those behind the last query, too.
    """
    batch, *rest, keys = sizes
    got = tuple(mask.shape)
    fits = got[0] == batch if len(got) == 2 else False
    words, model = "", " for a patched model"
    if rest:
        heads, queries = rest
        words = f", or, with four dimensions, ({batch} or 1, {heads} or 1, {queries}, {keys})"
        model = ""
        if len(got) == 4:
            fits = got[0] in (1, batch) and got[1] in (1, heads) and got[2] in (1, queries)
    if fits and keys <= got[-1] <= max(keys, capacity):
        return
    room = f", or up to {capacity} keys" if capacity > keys else ""
    raise ValueError(
        f"{name} must have shape (batch, keys) = ({batch}, {keys}){words}{room}{model}, got {got}"
    )


def shown(mask: torch.Tensor, name: str) -> torch.Tensor:
    """Return where a mask of four dimensions shows a key: True, or 0 among values to add."""
    if mask.dtype == torch.bool:
        return mask
    seen: torch.Tensor = mask == 0
    no_others = (seen | (mask < HIDES)).all()
    if mask.is_cpu and has_values(no_others) and not bool(no_others):
        raise ValueError(
            f"{name} must be 0 for visible keys and below {HIDES:g} for hidden ones, got other "
            "values: a bias is no mask"
        )
    return seen


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

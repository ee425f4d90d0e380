"""What the masks of a caller must be: their sizes and their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ntk_alibi import _checks
from ntk_alibi._torch_state import has_values
from ntk_alibi.masks import checked_attention_mask

#: Values that a mask adds to scores hide a key below this one: float32 weights are then 0.
HIDES = -1e3

#: The arguments of a model that are masks.
MASKS = "attention_mask", "encoder_attention_mask"

#: The types of arguments that need no further check.
PLAIN = torch.Tensor, type(None)


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


def check_inputs(arguments: Mapping[str, Any]) -> None:
    """Check the tokens and the masks of a patched model; masks on devices are not read."""
    for name in ("input_ids", "inputs_embeds", *MASKS):
        if type(arguments.get(name)) not in PLAIN:
            check_tensor(name, arguments[name])
    for name in MASKS:
        mask = arguments.get(name)
        if mask is None or mask.ndim != 2 or mask.dtype == torch.bool or not has_values(mask):
            continue
        if mask.is_cpu and not bool(((mask == 0) | (mask == 1)).all()):
            checked_attention_mask(mask, name)  # its error names what it must be


def check_tensor(name: str, value: Any) -> None:
    """Check that an argument is None or a plain tensor."""
    if type(value) in PLAIN:
        return
    _checks.check_no_block_mask(name, value)
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be None or a tensor, got {_checks.briefly(value)}")
    _checks.check_plain(name, value)

"""The kinds of passes: cross-attention, a bounded cache, masks of pairs, plain rows.

Each module has `begin(given)`, which returns its `Pass`.
"""

from __future__ import annotations

from ntk_alibi.integrations.caches import Bounded
from ntk_alibi.integrations.passes import crossing, pairs, rows, window
from ntk_alibi.integrations.passes.base import Pass
from ntk_alibi.integrations.passes.given import Given


def begin(given: Given) -> Pass:
    """Return the pass of what a layer got."""
    if given.attend.crosses:
        return crossing.begin(given)
    if isinstance(given.cache, Bounded):
        return window.begin(given)
    if getattr(given.mask, "ndim", 2) == 4 and given.masks_pairs:
        return pairs.begin(given)
    return rows.begin(given)

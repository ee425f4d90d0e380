"""The kinds of passes: cross-attention, a bounded cache, masks of pairs, plain rows.

Each module has `begin(inputs)`, which returns its `Pass`.
"""

from __future__ import annotations

from ntk_alibi.integrations.caches import Bounded
from ntk_alibi.integrations.passes import crossing, pairs, rows, window
from ntk_alibi.integrations.passes.base import Pass
from ntk_alibi.integrations.passes.inputs import PassInputs


def begin(inputs: PassInputs) -> Pass:
    """Return the pass of what a layer got."""
    if inputs.attend.crosses:
        return crossing.begin(inputs)
    if isinstance(inputs.cache, Bounded):
        return window.begin(inputs)
    if getattr(inputs.mask, "ndim", 2) == 4 and inputs.masks_pairs:
        return pairs.begin(inputs)
    return rows.begin(inputs)

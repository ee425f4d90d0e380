"""The rule that decides from positions which keys each query sees.

It is written three times: here for Python, in cpp/core for the kernels, and in
`ntk_alibi.reference` for the tests. All functions take NumPy arrays and torch tensors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ntk_alibi import _arrays, _checks
from ntk_alibi._backends import backend_of
from ntk_alibi._torch_state import extremes

#: The core's value for "no window". The largest window, MAX_LENGTH, still hides keys at the largest
#: distance.
_NO_WINDOW = _checks.MAX_LENGTH + 1


class Mask(NamedTuple):
    """A rule that gives each query an interval of positions, and sinks before it.

    A query at position p sees the keys at positions k with first(p) <= k < end(p), and the sinks,
    the keys with k < sink, if k < end(p)::

        end(p) = p + 1 if causal, else p + window
        first(p) = the greater of p - window + 1 and (floor(p / causal_block) - 1) causal_block

    Attributes:
        causal: whether keys ahead of the query are hidden.
        window: how many positions back (and ahead) a query sees, itself included; None for no
            limit.
        causal_block: length of the blocks of block-wise causal attention, or None.
        sink: how many of the first positions every query sees, even beyond its window or block.
    """

    causal: bool = True
    window: int | None = None
    causal_block: int | None = None
    sink: int = 0

    @classmethod
    def checked(
        cls, causal: Any = True, window: Any = None, causal_block: Any = None, sink: Any = 0
    ) -> Mask:
        """Check the arguments and return their mask."""
        causal = _checks.boolean("causal", causal)
        if window is not None:
            window = _checks.integer("window", window, minimum=1)
        if causal_block is not None:
            if not causal:
                raise ValueError(
                    "causal must be True, which hides all keys ahead, with causal_block, got "
                    f"causal_block={_checks.briefly(causal_block)}"
                )
            causal_block = _checks.integer("causal_block", causal_block, minimum=1)
        mask = cls(causal, window, causal_block, _checks.integer("sink", sink, minimum=0))
        if not mask.limited:
            _checks.check_equal("sink", mask.sink, 0, "without window or causal_block")
        return mask

    @property
    def sees_ahead(self) -> bool:
        """Whether a query may see keys ahead of it."""
        return not self.causal

    @property
    def limited(self) -> bool:
        """Whether a window or a block limits how far back a query sees."""
        return self.window is not None or self.causal_block is not None

    def to_integers(self) -> tuple[int, ...]:
        """Return the mask as integers, for the core and torch's operator."""
        window = _NO_WINDOW if self.window is None else self.window
        return int(self.causal), window, self.causal_block or 0, self.sink

    @classmethod
    def from_integers(cls, causal: int, window: int, causal_block: int, sink: int) -> Mask:
        """Return the mask that `to_integers` converted."""
        limit = None if window == _NO_WINDOW else window
        return cls(bool(causal), limit, causal_block or None, sink)

    def interval(self, positions: Any) -> tuple[Any, Any]:
        """Return the first and the end position of the interval that queries at positions see."""
        beyond = _checks.MAX_LENGTH + 1
        if isinstance(positions, int):
            first, end, greater, less = -beyond, beyond, max, min
        else:
            xp = backend_of(positions).xp
            first, end = xp.full_like(positions, -beyond), xp.full_like(positions, beyond)
            greater, less = xp.maximum, xp.minimum
        if self.window is not None:
            first, end = positions - (self.window - 1), positions + self.window
        if self.causal_block is not None:
            block = self.causal_block
            first = greater(first, (positions // block - 1) * block)
        if self.causal:
            end = less(end, positions + 1)
        return first, end

    def hides_all(self, queries: int, keys: int) -> bool:
        """Return whether queries that end with the last key begin too far before the first."""
        return queries > keys and bool(self.interval(keys - queries)[1] <= 0)

    def visible(self, queries: Any, keys: Any) -> Any:
        """Return which keys are seen, (..., Q, K) bool, for positions (..., Q) and (..., K)."""
        first, end = (bound[..., :, None] for bound in self.interval(queries))
        keys = keys[..., None, :]
        return (keys < end) & ((keys >= first) | (keys < self.sink))

    def visible_count(self, queries: Any, keys: Any, key_padding_mask: Any = None) -> Any:
        """Count the keys that each query sees, (1 or batch, Q), from positions (1 or batch, n).

        An integer K as keys means the positions 0 .. K - 1.
        """
        xp = backend_of(queries).xp
        if key_padding_mask is not None:
            real = backend_of(keys).convert(key_padding_mask, "bool")
            keys = xp.where(real, keys, 2 * (_checks.MAX_LENGTH + 1))
        first, end = self.interval(queries)
        sinks = xp.clip(first, None, self.sink)
        below_first, below_end, below_sinks = _counts_below(keys, (first, end, sinks))
        return below_end - below_first + below_sinks

    def bounded(self, least: Any, most: Any) -> tuple[Any, Any]:
        """Return the first and the last of the distances least .. most that a query may see."""
        greater, less = extremes()
        if self.window is not None:
            least = greater(least, 1 - self.window)
        if self.causal and least < 0:
            least = 0
        if self.sink == 0 and self.window is not None:
            most = less(most, self.window - 1)
        if self.sink == 0 and self.causal_block is not None:
            most = less(most, 2 * self.causal_block - 1)
        return least, most


#: The causal mask without limits.
EVERYTHING = Mask()


def _counts_below(values: Any, bounds: tuple[Any, ...]) -> list[Any]:
    """Count the values of each row, (1 or batch, n), below each bound, (1 or batch, m).

    An integer n as values means 0 .. n - 1.
    """
    if not _arrays.is_array(values):
        return [backend_of(bound).xp.clip(bound, 0, values) for bound in bounds]
    rows = np.broadcast_shapes(*((len(x), 1) for x in (values, *bounds)))[0]
    backend = backend_of(values)
    limits = [backend.xp.broadcast_to(x, (rows, x.shape[1])) for x in bounds]
    return backend.counts_below(values, limits)

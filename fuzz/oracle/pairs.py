"""Pairs of a query and a key: their distance, and whether the query sees the key."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class MaskRule:
    """The mask options of a call."""

    causal: bool = True
    window: int | None = None
    causal_block: int | None = None
    sink: int = 0


@dataclass(frozen=True)
class Pairs:
    """All pairs of a call.

    Attributes:
        queries: positions (1 or batch, Q), int64.
        keys: positions (1 or batch, K), int64.
        real: (batch, K), False for padding, or None.
        rule: the mask options.
        segment_ids: of queries (batch, Q) and keys (batch, K), or None if nothing is packed.
        mask: (batch or 1, heads or 1, Q, K), False for hidden pairs, or None.
    """

    queries: NDArray[np.int64]
    keys: NDArray[np.int64]
    real: NDArray[np.bool_] | None = None
    rule: MaskRule = MaskRule()
    segment_ids: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    mask: NDArray[np.bool_] | None = None

    @property
    def same_segment(self) -> NDArray[np.bool_]:
        """Whether query and key are in one packed segment, (1 or batch, 1, Q, K)."""
        if self.segment_ids is None:
            return np.ones((1, 1, self.queries.shape[1], self.keys.shape[1]), np.bool_)
        queries, keys = self.segment_ids
        same: NDArray[np.bool_] = (queries[:, :, None] == keys[:, None])[:, None]
        return same

    @cached_property
    def distance(self) -> NDArray[np.int64]:
        """Position of the query minus position of the key, (1 or batch, 1, Q, K)."""
        distance: NDArray[np.int64] = (self.queries[:, :, None] - self.keys[:, None, :])[:, None]
        return distance

    @cached_property
    def in_sight(self) -> NDArray[np.bool_]:
        """Whether rule and mask let the query see the key, real or not.

        (1 or batch, 1, Q, K), with a mask (1 or batch, 1 or heads, Q, K).
        """
        rule, d = self.rule, self.distance
        seen = np.ones(d.shape, np.bool_)
        if rule.window is not None:
            seen &= d < rule.window
        if rule.causal_block is not None:
            blocks = self.queries[:, :, None] // rule.causal_block
            seen &= (blocks - self.keys[:, None, :] // rule.causal_block <= 1)[:, None]
        seen |= (self.keys < rule.sink)[:, None, None, :]
        if rule.causal:
            seen &= d >= 0
        if rule.window is not None:
            seen &= d > -rule.window
        seen = seen & self.same_segment
        return seen if self.mask is None else seen & self.mask

    @cached_property
    def seen(self) -> NDArray[np.bool_]:
        """Whether the query sees the key, in the shape of `in_sight`."""
        if self.real is None:
            return self.in_sight
        seen: NDArray[np.bool_] = self.in_sight & self.real[:, None, None, :]
        return seen

    def log_n_factors(self, train_length: int) -> NDArray[np.float64]:
        """Return max(1, log n_i / log L) for n_i keys seen, (1 or batch, 1 or heads, Q, 1)."""
        counts = np.maximum(self.seen.sum(axis=3, dtype=np.float64), 1.0)
        factors: NDArray[np.float64] = np.maximum(1.0, np.log(counts) / np.log(train_length))
        return factors[..., None]

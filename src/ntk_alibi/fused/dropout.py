"""Dropout of attention weights, for a call and for its parts."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks, _core
from ntk_alibi.masks import Cut

#: The default, which needs no check.
NO_DROPOUT = 0.0

#: The random integers of weights are below this.
RANDOM_VALUES = 2**16


class Dropout(NamedTuple):
    """Dropout of the weights of a call, or of a part of a call.

    A weight's random integer depends only on the seed and on the indices of its row, head, query
    and key in the whole call, so parts drop the same weights as the whole (docs/formulas.md).

    Attributes:
        least_kept: weights whose random integer is below this are dropped.
        seed: below 2^64, an integer or an int64 tensor () with its bits.
        row: the index of the first row.
        head: the index of the first query head.
        query: the index of the first query: the column of the key at the same token.
        key: the index of the first key: its column.
    """

    least_kept: int
    seed: Any
    row: int = 0
    head: int = 0
    query: int = 0
    key: int = 0

    @property
    def factor(self) -> float:
        """The factor of the weights that are kept."""
        return RANDOM_VALUES / max(RANDOM_VALUES - self.least_kept, 1)

    def cut(self, cut: Cut) -> Dropout:
        """Return the dropout of a part."""
        parts: Any = cut[:4]
        own = (x + (part.start or 0) for x, part in zip(self[2:], parts, strict=True))
        return Dropout(self.least_kept, self.seed, *own)

    def in_core(self) -> _core.Dropout:
        """Return the dropout as the core's object."""
        seed = int(self.seed) % 2**64
        return _core.Dropout(
            self.least_kept, seed, self.row, self.head, self.query % 2**32, self.key
        )

    def kept(self, shape: tuple[int, int, int, int]) -> NDArray[np.bool_]:
        """Return which weights (batch, heads, queries, keys) are kept."""
        kept: NDArray[np.bool_] = _core.random_numbers(self.in_core(), shape) >= self.least_kept
        return kept


def checked_share(dropout: Any) -> float:
    """Check the argument dropout, a share of weights, and return it."""
    share = _checks.finite("dropout", dropout, minimum=0.0)
    if share > 1.0:
        raise ValueError(f"dropout must be at most 1, got {_checks.briefly(dropout)}")
    return share


def checked_dropout(dropout: Any, seed: Any, query: Any, keys: int) -> Dropout | None:
    """Check dropout and seed of a call and return its dropout, or None.

    Without a seed, tensors draw one from torch's generator.

    Raises:
        TypeError, ValueError: an argument is wrong, or arrays come without a seed.
    """
    least_kept = round(checked_share(dropout) * RANDOM_VALUES)
    if seed is not None:
        seed = _checks.integer("seed", seed, minimum=0, maximum=2**64 - 1)
    if least_kept == 0:
        return None
    if seed is None:
        if not _arrays.is_tensor(query):
            _checks.missing("seed", "with dropout of NumPy arrays")
        torch = sys.modules["torch"]
        seed = torch.randint(2**63 - 1, (), dtype=torch.int64, device="cpu")
    return Dropout(least_kept, seed, query=keys - query.shape[2])

"""Distances under StreamingLLM's sinks: evicted positions between sinks and window do not count.

Sinks are the first tokens of a text. Tokens that have left the window are evicted, and distances
count the remaining tokens only. Sinks therefore stay directly before the window for any length of
the text, as in a cache of sinks and window (Xiao et al. 2023, arXiv 2309.17453, 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ntk_alibi.masks import EVERYTHING, Mask


@dataclass(frozen=True)
class StreamingMask:
    """A causal mask whose sinks stand directly before the window or the block.

    Attributes:
        mask: the rule by which queries see positions.
    """

    mask: Mask = EVERYTHING

    @property
    def limits(self) -> dict[str, Any]:
        """The keywords of `ntk_alibi.attention` for the keys that are not sinks."""
        return {name: limit for name, limit in self.mask._asdict().items() if name != "sink"}

    def start(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the first position in the window and the block of queries, at least 0."""
        first: torch.Tensor = self.mask.interval(positions)[0]
        return first.clamp(min=0)

    def evicted(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the number of evicted positions, by which sink distances shrink."""
        return (self.start(positions) - self.mask.sink).clamp(min=0)

    def evicts(self, last: int) -> bool:
        """Return whether any position is evicted for a query at `last`."""
        return int(self.evicted(torch.tensor(last))) > 0

    def distances(
        self, queries: torch.Tensor, keys: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return distances of positions (..., queries) and (..., keys), and a mask of keys seen."""
        evicted = self.evicted(queries)[..., None]
        distance = queries[..., None] - keys[..., None, :]
        sinks = keys[..., None, :] < self.mask.sink
        return distance - torch.where(sinks, evicted, 0), self.mask.visible(queries, keys)

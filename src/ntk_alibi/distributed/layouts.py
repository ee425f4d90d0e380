"""The layouts of a text: how its tokens are divided among ranks."""

from __future__ import annotations

from typing import Any, Literal

import torch

#: Runs of tokens in the order of ranks; or two runs a rank, one from each end.
LAYOUTS = ("contiguous", "zigzag")

Layout = Literal["contiguous", "zigzag"]

#: The attribute of a tensor that `shard` cut, which says how. It is lost where torch copies the
#: tensor, and then nothing is known.
_CUT = "_ntk_alibi_layout"


def columns_of(rank: int, size: int, tokens: int, layout: Layout) -> torch.Tensor:
    """Return the columns of a text that a rank holds, ascending int64.

    Args:
        rank: the rank.
        size: number of ranks.
        tokens: number of tokens of the text.
        layout: "contiguous" for the rank's run of `size`; "zigzag" for two runs of 2 * `size`, the
            rank's from the beginning and from the end.
    """
    every = torch.arange(tokens)
    if layout == "contiguous":
        return every.tensor_split(size)[rank]
    runs = every.tensor_split(2 * size)
    return torch.cat([runs[rank], runs[2 * size - 1 - rank]])


def mark(part: torch.Tensor, layout: Layout) -> None:
    """Note on a rank's part of a text how it was cut."""
    setattr(part, _CUT, layout)


def layout_of(part: Any) -> str | None:
    """Return how a rank's part of a text was cut, or None where that is not known."""
    return getattr(part, _CUT, None)

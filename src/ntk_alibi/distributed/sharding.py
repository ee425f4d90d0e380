"""The part of a text that each rank of a process group holds: its layout, and batches cut so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch.nn import functional as F

from ntk_alibi import _checks
from ntk_alibi.distributed.ranks import Ranks

#: Runs of tokens in the order of ranks; or two runs a rank, one from each end.
LAYOUTS = ("contiguous", "zigzag")

Layout = Literal["contiguous", "zigzag"]

#: The attribute of a tensor that `shard` cut, which says how. It is lost where torch copies the
#: tensor, and then nothing is known.
_CUT = "_ntk_alibi_layout"

#: Label of tokens that do not count in a loss.
IGNORED = -100


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


def shard(batch: Mapping[str, Any], group: Any, *, layout: Layout = "contiguous") -> dict[str, Any]:
    """Return this rank's part of a batch, for a model that is patched with the same group.

    Tokens are cut into runs of nearly equal length, in the order of ranks. Labels are shifted by
    one before they are cut, so that each token's label is the token after it, also where that is
    another rank's; the label of the last token is -100, which does not count.

    With layout="zigzag" there are twice as many runs, and rank r of P gets the r-th from the
    beginning and the r-th from the end, so that all ranks see as many keys. This sends
    more bytes, which pays where heads see most of the text; `patch` needs the same layout. The
    positions of a rank's tokens, for `ntk_alibi.distributed.attention`, are this function's part
    of torch.arange(tokens).

    Args:
        batch: tensors by name. input_ids or inputs_embeds is (batch, tokens, ...); every entry of
            the same first two axes is cut along the tokens, and others stay as they are. labels are
            those of input_ids, as transformers takes them, unshifted.
        group: a torch.distributed.ProcessGroup, or a DeviceMesh with one dimension.
        layout: "contiguous" or "zigzag".

    Returns:
        A dict with the same keys.

    Raises:
        TypeError, ValueError: group is no such group; layout is unknown; batch lacks its inputs, or
            has fewer tokens than there are runs.

    Example: see docs/distributed.md.
    """
    ranks = Ranks.of(group)
    _checks.choice("layout", layout, LAYOUTS)
    inputs = next((batch[x] for x in ("input_ids", "inputs_embeds") if x in batch), None)
    if not isinstance(inputs, torch.Tensor) or inputs.ndim < 2:
        raise ValueError(
            "batch must have a tensor input_ids or inputs_embeds of (batch, tokens, ...), got "
            f"{list(batch)}"
        )
    rows, tokens = inputs.shape[:2]
    runs, each = (1, "one") if layout == "contiguous" else (2, "two")
    if tokens < runs * ranks.size:
        raise ValueError(
            f"batch must have at least {runs * ranks.size} tokens, {each} a rank, got {tokens}"
        )
    columns = columns_of(ranks.rank, ranks.size, tokens, layout)
    cut: dict[str, Any] = {}
    for name, value in batch.items():
        whole = value
        if isinstance(value, torch.Tensor) and value.shape[:2] == (rows, tokens):
            if name == "labels":
                whole = F.pad(value[:, 1:], (0, 1), value=IGNORED)
            whole = whole[:, columns.to(whole.device)]
            setattr(whole, _CUT, layout)
        cut[name] = whole
    return cut


def layout_of(part: Any) -> str | None:
    """Return how a rank's part of a text was cut, or None where that is not known."""
    return getattr(part, _CUT, None)

"""`shard` gives each rank of a process group its part of a batch, in one of two layouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch.nn import functional as F

from ntk_alibi import _checks
from ntk_alibi.distributed.ranks import Ranks

#: One run of tokens per rank, in the order of ranks; or two runs per rank, one from each end.
LAYOUTS = ("contiguous", "zigzag")

Layout = Literal["contiguous", "zigzag"]

#: The attribute in which `shard` keeps a tensor's layout. A copy of the tensor does not have it.
_LAYOUT = "_ntk_alibi_layout"

#: Label of tokens that do not count in a loss.
IGNORED = -100


def rank_columns(rank: int, size: int, tokens: int, layout: Layout) -> torch.Tensor:
    """Return the columns of a text that a rank gets, ascending int64.

    Args:
        rank: the rank.
        size: number of ranks.
        tokens: number of tokens of the text.
        layout: "contiguous" for the rank's run of `size`; "zigzag" for two runs of 2 * `size`, of
            which rank r gets the r-th from the beginning and the r-th from the end.
    """
    every = torch.arange(tokens)
    if layout == "contiguous":
        return every.tensor_split(size)[rank]
    runs = every.tensor_split(2 * size)
    return torch.cat([runs[rank], runs[2 * size - 1 - rank]])


def shard(batch: Mapping[str, Any], group: Any, *, layout: Layout = "contiguous") -> dict[str, Any]:
    """Return this rank's part of a batch, for a model that is patched with the same group.

    The tokens of each row are cut into runs of nearly equal length, one per rank, in the order of
    ranks. Labels are shifted by one first, so that the label of a token is the next token, even if
    another rank has that; the label of the last token is -100, which losses ignore.

    With layout="zigzag" there are two runs per rank: rank r gets the r-th from the beginning and
    the r-th from the end, so that causal attention gives all ranks the same work. More keys are
    exchanged, which pays where heads see most of the text. Pass the same layout to `patch`.

    `ntk_alibi.distributed.attention` needs the positions of a rank's tokens: shard
    torch.arange(tokens) as part of the batch.

    Args:
        batch: tensors by name. input_ids or inputs_embeds is (batch, tokens, ...). Every tensor
            with the same first two axes is cut along the tokens; all else stays as it is. labels
            are aligned with input_ids, not shifted, as transformers takes them.
        group: a torch.distributed.ProcessGroup, or a DeviceMesh with one dimension.
        layout: "contiguous" or "zigzag".

    Returns:
        A dict with the same keys.

    Raises:
        TypeError, ValueError: group is not a process group with this process; layout is unknown;
            batch has neither input_ids nor inputs_embeds, or fewer tokens than there are runs.

    Example: see docs/distributed.md.
    """
    ranks = Ranks.from_group(group)
    _checks.choice("layout", layout, LAYOUTS)
    inputs = next((batch[x] for x in ("input_ids", "inputs_embeds") if x in batch), None)
    if not isinstance(inputs, torch.Tensor) or inputs.ndim < 2:
        raise ValueError(
            "batch must have a tensor input_ids or inputs_embeds of (batch, tokens, ...), got "
            f"{list(batch)}"
        )
    rows, tokens = inputs.shape[:2]
    runs, words = (1, "one") if layout == "contiguous" else (2, "two")
    if tokens < runs * ranks.size:
        raise ValueError(
            f"batch must have at least {runs * ranks.size} tokens, {words} a rank, got {tokens}"
        )
    columns = rank_columns(ranks.rank, ranks.size, tokens, layout)
    parts: dict[str, Any] = {}
    for name, value in batch.items():
        part = value
        if isinstance(value, torch.Tensor) and value.shape[:2] == (rows, tokens):
            if name == "labels":
                part = F.pad(value[:, 1:], (0, 1), value=IGNORED)
            part = part[:, columns.to(part.device)]
            setattr(part, _LAYOUT, layout)
        parts[name] = part
    return parts


def find_layout(part: Any) -> str | None:
    """Return the layout of a tensor that `shard` returned, or None for any other tensor."""
    return getattr(part, _LAYOUT, None)

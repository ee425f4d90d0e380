"""The part of a batch that a rank of a process group computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional as F

from ntk_alibi.distributed.ranks import Ranks

#: Label of tokens that do not count in a loss.
IGNORED = -100


def shard(batch: Mapping[str, Any], group: Any) -> dict[str, Any]:
    """Return this rank's part of a batch, for a model that is patched with the same group.

    Tokens are cut into runs of nearly equal length, in the order of ranks. Labels are shifted by
    one before they are cut, so that each token's label is the token after it, also where that is
    another rank's; the label of the last token is -100, which does not count.

    Args:
        batch: tensors by name. input_ids or inputs_embeds is (batch, tokens, ...); every entry of
            the same first two axes is cut along the tokens, and others stay as they are. labels are
            those of input_ids, as transformers takes them, unshifted.
        group: a torch.distributed.ProcessGroup, or a DeviceMesh with one dimension.

    Returns:
        A dict with the same keys.

    Raises:
        TypeError, ValueError: group is no such group; batch lacks its inputs, or has fewer tokens
            than there are ranks.

    Example: see docs/distributed.md.
    """
    ranks = Ranks.of(group)
    inputs = next((batch[x] for x in ("input_ids", "inputs_embeds") if x in batch), None)
    if not isinstance(inputs, torch.Tensor) or inputs.ndim < 2:
        raise ValueError(
            "batch must have a tensor input_ids or inputs_embeds of (batch, tokens, ...), got "
            f"{list(batch)}"
        )
    rows, tokens = inputs.shape[:2]
    if tokens < ranks.size:
        raise ValueError(f"batch must have at least {ranks.size} tokens, one a rank, got {tokens}")
    cut: dict[str, Any] = {}
    for name, value in batch.items():
        whole = value
        if isinstance(value, torch.Tensor) and value.shape[:2] == (rows, tokens):
            if name == "labels":
                whole = F.pad(value[:, 1:], (0, 1), value=IGNORED)
            whole = whole.tensor_split(ranks.size, dim=1)[ranks.rank].contiguous()
        cut[name] = whole
    return cut

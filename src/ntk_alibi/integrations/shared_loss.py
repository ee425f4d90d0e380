"""The loss of models that are patched with a group: each rank has a part of the text."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from ntk_alibi.distributed.ranks import Ranks
from ntk_alibi.distributed.sharding import IGNORED


class LossOfParts:
    """Cross-entropy of this rank's tokens, with labels that were shifted before they were cut.

    The mean over the ranks is the mean over the tokens of all ranks.

    Attributes:
        replaced: the loss function that the user had set, or None.
    """

    def __init__(self, ranks: Ranks, replaced: Any) -> None:
        self._ranks, self.replaced = ranks, replaced

    def __call__(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        vocab_size: int,
        num_items_in_batch: Any = None,
        **_: Any,
    ) -> torch.Tensor:
        """Return the loss of a model whose forward got these labels."""

        def describe() -> dict[str, Any]:
            if num_items_in_batch is not None:
                raise ValueError(
                    "num_items_in_batch must be None in a model patched with group, got "
                    f"{int(num_items_in_batch)}: transformers' Trainer gives it, and multiplies "
                    "the loss by the number of processes; give it a compute_loss of "
                    "model(**inputs).loss, as docs/distributed.md has it"
                )
            if tuple(labels.shape) != tuple(logits.shape[:-1]):
                raise ValueError(
                    "labels must belong to this rank's part of input_ids, "
                    f"{tuple(logits.shape[:-1])}, in a model patched with group, got "
                    f"{tuple(labels.shape)}: ntk_alibi.torch.shard shifts and cuts them"
                )
            return {"own labels": int((labels != IGNORED).sum())}

        total = sum(x["own labels"] for x in self._ranks.agree(describe))
        labels = labels.to(logits.device)
        nats = F.cross_entropy(
            logits.float().view(-1, vocab_size),
            labels.reshape(-1),
            ignore_index=IGNORED,
            reduction="sum",
        )
        return nats * self._ranks.size / torch.tensor(total, dtype=nats.dtype, device=nats.device)

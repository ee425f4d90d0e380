"""Loss and logits of models that are patched with a group: each rank has a part of the text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ntk_alibi.distributed.ranks import Ranks
from ntk_alibi.distributed.sharding import IGNORED
from ntk_alibi.integrations.arguments import by_name, cache_of, inputs_of, positional_names
from ntk_alibi.integrations.begin_shared_pass import is_cut
from ntk_alibi.integrations.tokens import Tokens, padding_in
from ntk_alibi.integrations.transformers_versions import is_pretrained

#: The attribute of a patched model that keeps the models above it, in a tuple, so that they are no
#: parts.
_ABOVE = "_ntk_alibi_above"

#: The attribute in which transformers keeps a model's own loss function.
_LOSS = "_loss_function"


#: The attribute of a model above a patched one that keeps the handle of its forward pre-hook.
_LOGITS = "_ntk_alibi_logits"


def keep_models(models: Sequence[nn.Module], target: nn.Module) -> None:
    """Let a target know the models with a loss above it."""
    if above := [part for part in models if is_pretrained(part) and part is not target]:
        setattr(target, _ABOVE, tuple(above))


def choose(target: nn.Module, ranks: Ranks | None) -> None:
    """Give the models above a target loss and logits of parts of a text, or their own."""
    for model in getattr(target, _ABOVE, ()):
        own = vars(model).pop(_LOSS, None)  # the model's class decides where there is none
        if isinstance(own, _LossOfParts):
            own = own.replaced
        if ranks is not None:
            own = _LossOfParts(ranks, own)
        if own is not None:
            setattr(model, _LOSS, own)
        if handle := vars(model).pop(_LOGITS, None):
            handle.remove()
        names = positional_names(model)
        if ranks is not None and "logits_to_keep" in names:
            ask = partial(_ask_for_logits, names)
            setattr(model, _LOGITS, model.register_forward_pre_hook(ask, with_kwargs=True))


def give_back(target: nn.Module) -> None:
    """Undo `choose` and `keep_models`."""
    choose(target, None)
    if hasattr(target, _ABOVE):
        delattr(target, _ABOVE)


def _ask_for_logits(
    names: tuple[str, ...], model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[()], dict[str, Any]] | None:
    """Let the inner model know which hidden states the ranks share, in place of all of them."""
    given = by_name(names, args, kwargs)
    mask, inputs = given.get("attention_mask"), inputs_of(given)
    asked = inputs is None or getattr(mask, "keep", None) is not None
    if asked or not is_cut(cache_of(given), inputs.shape[1]):
        return None
    keep = given.get("logits_to_keep", 0)
    given["attention_mask"] = Tokens(padding_in(mask), keep=keep)
    return (), {**given, "logits_to_keep": 0}


class _LossOfParts:
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

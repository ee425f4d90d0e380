"""Comparison of a model that shares a text with others with one that reads it alone."""

from __future__ import annotations

from typing import Any

import torch

import ntk_alibi as na
from ntk_alibi.distributed.ranks import Ranks
from ntk_alibi.torch import shard

#: Three layers of float32 sums, at logits up to 20; losses and relative errors of gradients.
LOGITS, LOSS, GRADIENTS = 1e-4, 1e-5, 1e-5


def gradients_of(model: Any) -> dict[str, torch.Tensor]:
    """Return the whole gradients of a model, whose weights may be divided."""
    found = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        found[name] = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return found


def differences(
    whole: Any,
    model: Any,
    batch: dict[str, torch.Tensor],
    group: Any,
    *,
    averaged: bool = False,
    layout: dict[str, Any] | None = None,
    **options: Any,
) -> list[float]:
    """Return the greatest differences of logits and loss, and the relative one of gradients.

    Args:
        whole: a model that reads the text alone.
        model: the same model, which shares the text with the ranks of a group.
        batch: the text, with attention_mask and labels.
        group: the ranks.
        averaged: whether something else averages gradients over the ranks.
        layout: keywords of `shard` and `patch`.
        options: keywords of `patch`.
    """
    ranks, layout = Ranks.of(group), layout or {}
    own = shard({"input_ids": torch.arange(batch["input_ids"].shape[1])[None]}, group, **layout)
    at = own["input_ids"][0]
    for each in (whole, model):
        each.zero_grad(set_to_none=True)
    with na.patch(whole, **options):
        expected = whole(**batch)
        expected.loss.backward()
    with na.patch(model, **options, **layout, group=group) as patch:
        result = model(**patch.shard(batch))
        result.loss.backward()
    loss = torch.stack(ranks.gather(result.loss.detach())).mean()
    exact, worst = gradients_of(whole), 0.0
    for name, gradient in gradients_of(model).items():
        if not averaged:
            gradient = torch.stack(ranks.gather(gradient)).mean(0)
        worst = max(worst, float((gradient - exact[name]).norm() / exact[name].norm()))
    real = batch["attention_mask"][:, at] > 0
    logits = (result.logits - expected.logits[:, at])[real]
    return [float(logits.detach().abs().max()), float(loss - expected.loss.detach()), worst]


def assert_small(errors: list[float], name: str) -> None:
    for error, bound in zip(errors, (LOGITS, LOSS, GRADIENTS), strict=True):
        assert abs(error) < bound, (name, errors)

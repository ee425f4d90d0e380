"""Dropout of attention weights in patched models that train."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ntk_alibi as na
from family_models import families, make_model
from model_runs import assert_gradients_close, drop_weights, gradients
from padded_batches import BATCH, LENGTH, MASKS


def drop_as_the_core_does(weights: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """Stand in for torch's dropout: the reference's, by a seed from torch's generator."""
    if not training or p == 0.0:
        return weights
    seed = int(torch.randint(2**63 - 1, (), dtype=torch.int64))
    shape = (BATCH, weights.numel() // BATCH // LENGTH**2, LENGTH, LENGTH)
    factors = torch.from_numpy(na.reference.dropout_factors(shape, p, seed))
    return weights * factors.to(weights.dtype).view_as(weights)


@families
@pytest.mark.parametrize(
    ("options", "mask"),
    [
        ({"scaling": na.NTK(2.0)}, "right"),
        ({"window": 4, "sink": 2}, "right"),
        ({"window": 4, "sink": 2}, "none"),
    ],
    ids=["padded", "sinks, padded", "sinks"],
)
def test_forms_drop_the_same_weights(
    ids: torch.Tensor,
    name: str,
    options: dict[str, Any],
    mask: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Layers draw a seed each, checkpointed ones the same again; sinks keep their columns."""

    def of(attention: str, *, checkpointing: bool = False) -> list[torch.Tensor]:
        model = make_model(name).train()
        drop_weights(model)
        torch.manual_seed(0)
        patch = {**options, "attention": attention}
        return gradients(model, ids, MASKS[mask], ids, checkpointing=checkpointing, **patch)

    found = of("fused"), of("fused", checkpointing=True)
    with monkeypatch.context() as patched:
        patched.setattr(
            torch.nn.functional, "dropout",
            lambda x, p=0.5, training=True, inplace=False: drop_as_the_core_does(x, p, training),
        )  # fmt: skip
        expected = of("eager")
    for gradient in found:
        assert_gradients_close(gradient, expected)

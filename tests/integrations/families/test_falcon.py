"""Features of the Falcon patch alone."""

from __future__ import annotations

import torch

import ntk_alibi as na
from family_models import LOGITS, make_model
from padded_batches import run


def test_falcon_in_the_eager_form_of_transformers_counts_the_bias_twice(
    models: dict, ids: torch.Tensor
) -> None:
    eager = make_model("falcon", attn_implementation="eager")
    with na.patch(eager):
        torch.testing.assert_close(run(eager, ids), run(models["falcon"], ids), **LOGITS)
    assert (run(eager, ids) - run(models["falcon"], ids)).abs().max() > 1e-2

"""Features of the Falcon patch alone."""

from __future__ import annotations

import torch

import ntk_alibi as na
from model_runs import LOGITS, run
from small_models import make_model


def test_falcon_in_the_eager_form_of_transformers_counts_the_bias_twice(
    models: dict, ids: torch.Tensor
) -> None:
    eager = make_model("falcon", attn_implementation="eager")
    with na.patch(eager):
        torch.testing.assert_close(run(eager, ids), run(models["falcon"], ids), **LOGITS)
    assert (run(eager, ids) - run(models["falcon"], ids)).abs().max() > 1e-2

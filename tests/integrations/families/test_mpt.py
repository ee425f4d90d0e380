"""Features of the MPT patch alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import ntk_alibi as na
from model_runs import LOGITS, run
from small_models import HEADS, make_model
from table_families import MPT, Meaning, Oracle


def test_mpt_goes_on_behind_max_seq_len(models: dict) -> None:
    model, ids = models["mpt"], torch.arange(64)[None]
    with pytest.raises(RuntimeError, match="size of tensor"):
        run(model, ids)
    longer = copy.deepcopy(model)
    longer.config.max_seq_len = 64
    with na.patch(model):
        torch.testing.assert_close(run(model, ids), run(longer, ids), **LOGITS)


def test_mpt_has_the_slopes_of_its_alibi_bias_max(models: dict, ids: torch.Tensor) -> None:
    """transformers takes 8 for any configuration."""
    model = make_model("mpt", attn_config={"alibi_bias_max": 16})
    model.load_state_dict(models["mpt"].state_dict())
    assert torch.equal(run(model, ids), run(models["mpt"], ids))
    slopes = 2.0 ** -(2.0 * np.arange(1, HEADS + 1))
    for scaling, stretched in ((None, slopes), (na.NTK(4.0), na.reference.ntk_slopes(slopes, 4.0))):
        oracle = Oracle(model, MPT, Meaning(slopes=lambda *_, x=stretched: x))
        oracle.masks = {"decoder": torch.ones_like(ids)}
        with na.patch(model, scaling):
            expected = run(oracle.model, ids)
            torch.testing.assert_close(run(model, ids).double(), expected, **LOGITS)


def test_mpt_clips_its_projections(ids: torch.Tensor) -> None:
    model = make_model("mpt", attn_config={"clip_qkv": 0.1, "softmax_scale": 0.5})
    stock = run(model, ids)
    with na.patch(model):
        torch.testing.assert_close(run(model, ids), stock, **LOGITS)

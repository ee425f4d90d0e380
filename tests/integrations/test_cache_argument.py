"""Caches by each name under which models of this version of transformers take them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ntk_alibi as na
from model_runs import LOGITS, generate, run
from ntk_alibi.integrations.arguments import CACHE, CACHES
from small_models import families

#: transformers 5.24 warns of the older name, which it takes until 5.40.
pytestmark = pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")

names = pytest.mark.parametrize("argument", CACHES)


@names
@families
def test_a_text_in_pieces(models: dict, ids: torch.Tensor, name: str, argument: str) -> None:
    model: Any = models[name]
    cache, window = na.GrowingCache(), na.WindowCache(8)
    with na.patch(model), torch.no_grad():
        whole = run(model, ids)
        first = run(model, ids[:, :30], **{argument: cache})
        inner = model.base_model(ids[:, 30:], **{argument: cache}).last_hidden_state
        pieces = torch.cat([first, model.get_output_embeddings()(inner)], dim=1)
        torch.testing.assert_close(pieces, whole, **LOGITS)
        assert cache.get_seq_length() == ids.shape[1]
        with pytest.raises(ValueError, match=f"{CACHE} must hold what the patch shows"):
            run(model, ids, **{argument: window})


@names
def test_generation(models: dict, ids: torch.Tensor, argument: str) -> None:
    model, cache = models["mpt"], na.GrowingCache()
    with na.patch(model, na.NTK(2.0)):
        expected = generate(model, ids, None)
        assert torch.equal(generate(model, ids, None, **{argument: cache}), expected)
    assert cache.get_seq_length() == expected.shape[1] - 1

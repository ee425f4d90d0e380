"""Features of the Falcon patch alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.falcon import modeling_falcon

import ntk_alibi as na
from family_models import LOGITS, make_model
from model_runs import generate
from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.integrations.forward_pass import RoundedALiBi
from ntk_alibi.masks import Problem
from padded_batches import LENGTH, MASKS, VOCABULARY, run


def test_falcon_in_the_eager_form_of_transformers_counts_the_bias_twice(
    models: dict, ids: torch.Tensor
) -> None:
    eager = make_model("falcon", attn_implementation="eager")
    with na.patch(eager):
        torch.testing.assert_close(run(eager, ids), run(models["falcon"], ids), **LOGITS)
    assert (run(eager, ids) - run(models["falcon"], ids)).abs().max() > 1e-2


@pytest.mark.parametrize("attention", ["fused", "eager"])
@pytest.mark.parametrize(("heads", "length"), [(8, 600), (12, LENGTH), (12, 600), (16, LENGTH)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_falcon_with_the_rounding_of_transformers(
    heads: int, length: int, attention: Any, dtype: torch.dtype
) -> None:
    """The bias is exact; transformers adds it to scores in float32, with errors of its size."""
    model = make_model("falcon", heads).to(dtype)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (2, length), generator=generator)
    mask = (torch.arange(length) >= torch.tensor([[0], [9]])).long()
    kept, stock = mask.bool(), run(model, ids, mask)
    with na.patch(model, attention=attention):
        exact = (run(model, ids, mask) - stock)[kept].abs().max()
    with na.patch(model, attention=attention, compat="transformers"):
        compatible = (run(model, ids, mask) - stock)[kept].abs().max()
    largest_bias = 2.0**-0.5 * length / 16**0.5
    assert compatible < LOGITS["atol"] + 2.0**-23 * largest_bias * 3  # layers
    assert exact > 50 * compatible


@pytest.mark.parametrize("attention", ["fused", "eager"])
def test_falcon_with_the_rounding_of_transformers_in_bfloat16(attention: Any) -> None:
    """Sums in bfloat16 differ, but by less on average than in the exact mode."""
    model, ids = make_model("falcon", 12).bfloat16(), torch.arange(600)[None] % VOCABULARY
    stock, errors = run(model, ids), []
    for compat in ("transformers", "exact"):
        with na.patch(model, attention=attention, compat=compat):
            errors.append((run(model, ids) - stock).abs().mean())
    assert errors[0] < 0.7 * errors[1]


def test_falcon_generates_with_the_rounding_of_transformers(ids: torch.Tensor) -> None:
    model, mask = make_model("falcon", 12), MASKS["left"]
    with na.patch(model, compat="transformers") as handle:
        assert "compat='transformers', in force" in repr(handle)
        tokens = generate(model, ids, mask)
        assert torch.equal(generate(model, ids, mask, use_cache=False), tokens)
        assert torch.equal(generate(model, ids, mask, cache_implementation="static"), tokens)
    assert torch.equal(generate(model, ids, mask), tokens)


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 16, 32, 40, 64, 71, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_falcons_rounded_bias_is_theirs_bit_for_bit(heads: int, dtype: torch.dtype) -> None:
    positions = torch.arange(3000)
    theirs = modeling_falcon.build_alibi_tensor(torch.ones_like(positions)[None], heads, dtype)
    rule = ModelSlopes(heads, slope_divisor=80**0.5)
    kernel = RoundedALiBi(rule, None, dtype).kernel_bias(Problem((1, heads, 1, 3000)), theirs)
    assert torch.equal(kernel.dense[0, :, 0], (theirs / 80**0.5)[:, 0].float())


def test_the_rounding_of_transformers_is_refused_where_there_is_none(models: dict) -> None:
    for name in ("bloom", "mpt"):
        with pytest.raises(ValueError, match=r"compat for .* must be one of 'exact', got 'transf"):
            na.patch(models[name], compat="transformers")
    falcon = models["falcon"]
    with pytest.raises(ValueError, match="compat must be one of 'exact', 'transformers', got 'hf'"):
        na.patch(falcon, compat="hf")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="compat='transformers' must be one of 'fused', 'eager'"):
        na.patch(falcon, compat="transformers", attention="traceable")
    with pytest.raises(ValueError, match="scaling must not have per='query' here"):
        na.patch(falcon, na.DynamicNTK(per="query"), compat="transformers")
    with pytest.raises(ValueError, match="scaling must not be a knee here"):
        na.patch(falcon, na.Knee(8, 2.0), compat="transformers")

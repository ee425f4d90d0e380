"""Slopes of models and of the processes of tensor parallelism."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import transformers

import ntk_alibi as na
from ntk_alibi.engines.vllm.families import (
    BLOOM,
    FALCON,
    find_family,
    model_slopes,
    process_slopes,
)

HEADS = [1, 6, 8, 12, 71]

SCALINGS = [None, na.Interpolation(4.0), na.NTK(4.0), na.FlatHeads(8.0), na.MaxBias(2.0)]


@pytest.mark.parametrize("scaling", SCALINGS, ids=repr)
@pytest.mark.parametrize("heads", HEADS)
def test_slopes_are_those_of_alibi_slopes(heads: int, scaling: Any) -> None:
    config = transformers.BloomConfig(n_head=heads, hidden_size=8 * heads)
    expected = na.alibi_slopes(heads, scaling)
    assert (model_slopes(BLOOM.rule(config), scaling) == expected).all()


@pytest.mark.parametrize("heads", HEADS)
def test_plain_and_ntk_slopes_are_those_of_the_reference(heads: int) -> None:
    config = transformers.BloomConfig(n_head=heads, hidden_size=8 * heads)
    plain = na.reference.alibi_slopes(heads)
    rule = BLOOM.rule(config)
    rounding = {"rtol": 2.0**-23, "atol": 0.0}
    np.testing.assert_allclose(model_slopes(rule, None), plain, **rounding)
    expected = na.reference.ntk_slopes(plain, 4.0)
    np.testing.assert_allclose(model_slopes(rule, na.NTK(4.0)), expected, **rounding)


def test_falcon_divides_slopes_by_the_root_of_its_head_size() -> None:
    config = transformers.FalconConfig(num_attention_heads=6, hidden_size=6 * 40, alibi=True)
    expected = na.alibi_slopes(6, na.NTK(4.0)) / np.float32(math.sqrt(40))
    assert (model_slopes(FALCON.rule(config), na.NTK(4.0)) == expected).all()


@pytest.mark.parametrize("processes", [1, 2, 3, 6])
def test_processes_share_the_heads_of_the_whole_model(processes: int) -> None:
    slopes = na.alibi_slopes(6, na.NTK(4.0))
    parts = [process_slopes(slopes, process, processes) for process in range(processes)]
    assert {len(part) for part in parts} == {6 // processes}
    assert (np.concatenate(parts) == slopes).all()


def test_heads_that_processes_cannot_share_are_refused() -> None:
    with pytest.raises(ValueError, match="the number of heads must be a multiple of tensor_par"):
        process_slopes(na.alibi_slopes(6), 0, 4)


@pytest.mark.parametrize(
    ("architecture", "family"),
    [
        ("BloomForCausalLM", BLOOM),
        ("BloomForSequenceClassification", BLOOM),
        ("BloomModel", BLOOM),
        ("FalconForCausalLM", FALCON),
        ("FalconModel", FALCON),
        ("MptForCausalLM", None),
        ("FalconMambaForCausalLM", None),
        ("FalconH1ForCausalLM", None),
        ("LlamaForCausalLM", None),
        ("TransformersForCausalLM", None),
    ],
)
def test_architectures_have_their_family(architecture: str, family: Any) -> None:
    assert find_family(architecture) is family


def test_falcon_with_rotary_positions_has_no_alibi() -> None:
    assert FALCON.uses_alibi(transformers.FalconConfig(alibi=True))
    assert not FALCON.uses_alibi(transformers.FalconConfig(alibi=False))

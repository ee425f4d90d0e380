"""The ALiBi of a layer of a model, whose family may have slopes of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

import ntk_alibi as na
from attention_checks import inputs
from ntk_alibi.biases.alibi import ModelALiBi
from ntk_alibi.biases.slopes import ModelSlopes

#: Slopes, quotients and products are rounded once each.
RTOL = 3 * 2.0**-24

SCALINGS = [
    None,
    na.NTK(4.0),
    na.DynamicNTK(1.0, 4),
]


@pytest.mark.parametrize("sides", ["causal", "symmetric"])
@pytest.mark.parametrize("scaling", [None, na.NTK(4.0)], ids=repr)
def test_slopes_are_those_of_the_family(scaling: Any, sides: Any) -> None:
    bloom = na.reference.alibi_slopes(12)
    mpt = -build_mpt_alibi_tensor(12, 2, alibi_bias_max=4)[:, 0, 0].double().numpy()
    for rule, slopes, divisor in [
        (ModelSlopes.for_bloom(12), bloom, 1.0),
        (ModelSlopes.for_mpt(12, 4), mpt, 1.0),
        (ModelSlopes.for_falcon(12, 64), bloom, 8.0),
    ]:
        slopes = slopes if scaling is None else na.reference.ntk_slopes(slopes, 4.0)
        slopes = slopes / divisor
        dense_bias = na.reference.symmetric_bias(slopes, 7, 9)
        if sides == "causal":
            dense_bias = na.reference.linear_bias(slopes, np.full(12, np.inf), 7, 9)
        found = ModelALiBi(rule, scaling, sides=sides).tensor(7, 9)
        np.testing.assert_allclose(
            found, dense_bias, rtol=RTOL + (rule.max_bias != 8) * 1e-6, atol=0
        )


@pytest.mark.parametrize("sides", ["causal", "symmetric"])
@pytest.mark.parametrize("scaling", SCALINGS, ids=repr)
def test_blooms_is_alibi_in_attention(scaling: Any, sides: Any) -> None:
    arrays = inputs(2, 6, 2, 9, 20, 8)
    real = np.arange(20) >= np.array([[0], [7]])
    both = (
        ModelALiBi(ModelSlopes.for_bloom(6), scaling, sides=sides),
        na.ALiBi(6, scaling, sides=sides),
    )
    options = {"causal": sides == "causal", "key_padding_mask": real}
    np.testing.assert_array_equal(*(na.attention(*arrays, bias, **options) for bias in both))
    tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
    results = [na.attention(*tensors, bias, **options) for bias in both]
    torch.testing.assert_close(*results, rtol=0, atol=0)

"""Linear layers of patched models, and which operators their products run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ntk_alibi as na
from family_models import make_model
from ntk_alibi.integrations import linear

ONEDNN = "mkldnn::_linear_pointwise"

needs_onednn = pytest.mark.skipif(
    linear.PRODUCT is None, reason="this torch has no product of oneDNN"
)


def operators(call: Callable[[], object]) -> set[str]:
    """Return the names of the operators that a call runs."""
    with torch.profiler.profile() as profile:
        call()
    return {event.key for event in profile.key_averages()}


def layer_of(model: Any) -> nn.Linear:
    layer: nn.Linear = model.transformer.h[0].mlp.dense_h_to_4h
    return layer


def inputs(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def patched_layer() -> nn.Linear:
    """Return a layer of a patched BLOOM that takes oneDNN's products, from 128 to 512 channels."""
    model = make_model("bloom")
    na.patch(model, linear="onednn")
    return layer_of(model)

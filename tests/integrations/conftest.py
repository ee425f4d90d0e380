"""Small random models and their input, for all tests of patched models."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from model_runs import batch
from small_models import MAKERS, make_model


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: make_model(name) for name in MAKERS}


@pytest.fixture(scope="module")
def shallow() -> dict[str, Any]:
    """Models of one layer, for what costs time in each layer: compilers and exporters."""
    return {name: make_model(name, layers=1) for name in ("bloom", "mpt", "falcon")}


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return batch()

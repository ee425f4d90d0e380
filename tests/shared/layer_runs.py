"""Models whose layers are shared, copied or changed: their blocks, and what they compute."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import ntk_alibi as na

IDS = torch.randint(3, 60, (2, 20), generator=torch.Generator().manual_seed(1))
MAIN, DRAFT = na.Interpolation(8.0), na.NTK(2.0)
#: Float32 sums through three layers; BLOOM's activation may be computed by another formula of it.
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
ELSEWHERE = "^layer must be called by its patched .*"
forms = pytest.mark.parametrize("form", ["fused", "eager", "traceable"])


def run(model: Any) -> torch.Tensor:
    cached = model.config.model_type in ("bloom", "mpt", "falcon")
    with torch.no_grad():
        output: torch.Tensor = model(IDS, **({"use_cache": False} if cached else {}))[0]
    return output


def patched(model: Any, method: Any, form: Any = None) -> torch.Tensor:
    """Return what a copy of a model computes with a patch."""
    model = copy.deepcopy(model)
    na.unpatch(model)
    na.patch(model, method, attention=form)
    return run(model)


def blocks(model: Any) -> nn.ModuleList:
    return next(x for x in model.modules() if isinstance(x, nn.ModuleList))

"""Pictures of biases and scalings in notebooks: what `plots` draws, or none."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

import ntk_alibi as na
from ntk_alibi.biases import BiasObject, KernelBias


class FewPositions(BiasObject):
    """A bias for keys at two positions only, which has no values elsewhere."""

    def __init__(self) -> None:
        self.define(num_heads=1, sides="causal")

    def kernel_bias(self, problem: Any, like: Any = None) -> KernelBias:
        return KernelBias(dense=np.zeros((1, 1, 1, 2))[..., problem.positions(like)[1]])


PICTURED: list[Any] = [
    na.ALiBi(2, na.DynamicNTK(train_length=512)),
    na.ALiBi(2, slopes=torch.zeros(2, requires_grad=True)),
    na.NTK(4.0),
    na.DynamicInterpolation(2.0, 512),
]

#: Gates or positions that are not there, distances, values, a training length.
UNPICTURED: list[Any] = [
    na.ForgetGates(np.zeros((1, 2, 5))),
    FewPositions(),
    na.DistanceTable(np.zeros((2, 100))),
    na.ALiBi(2, slopes=torch.ones(2, device="meta")),
    na.ALiBi(2, na.DynamicNTK()),
    na.DynamicNTK(),
]


@pytest.mark.parametrize("thing", PICTURED, ids=str)
def test_a_notebook_shows_a_picture(thing: Any) -> None:
    open_figures = plt.get_fignums()
    assert thing._repr_png_().startswith(b"\x89PNG")
    assert plt.get_fignums() == open_figures


@pytest.mark.parametrize("thing", UNPICTURED, ids=str)
def test_a_notebook_shows_the_plain_form_where_nothing_can_be_drawn(thing: Any) -> None:
    assert thing._repr_png_() is None

"""Position schemes: where they start, and the ways to read with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from studies.schemes.schemes import SCHEMES, AttentionView, LayerShape

import ntk_alibi as na

pytestmark = pytest.mark.slow  # of a program beside the package


def first_bias(name: str, place: LayerShape, distances: int) -> Any:
    """Return the initial bias at distances 0, 1, ..., (heads, distances) float64."""
    torch.manual_seed(0)
    hidden = torch.randn(1, distances, place.hidden_size)
    with torch.no_grad():
        bias = SCHEMES[name](place)(hidden, AttentionView())["bias"].tensor(1, distances)
    return np.asarray(bias, np.float64)[0, :, 0, ::-1]


PLACE = LayerShape(heads=8, hidden_size=128, train_length=128)


@pytest.mark.parametrize("name", ["alibi", "learned-slopes", "kerple-power", "bam", "fox"])
def test_learned_biases_start_as_alibi(name: str) -> None:
    expected = -PLACE.slopes.double().numpy()[:, None] * np.arange(512)
    # Parameters are logarithms or logits of at most 4 in size, rounded to float32, and the function
    # that undoes them rounds once more: 4 * 2^-24 + 2^-24, relatively. BAM adds epsilon = 1e-5.
    np.testing.assert_allclose(first_bias(name, PLACE, 512), expected, rtol=3e-7, atol=1.01e-5)


def test_the_authors_bam_starts_flat() -> None:
    assert np.all(first_bias("bam-flat", PLACE, 512) == -1.0)
    hidden = torch.zeros(1, 20, PLACE.hidden_size)
    with torch.no_grad():
        bias = SCHEMES["bam-flat-ssmax"](PLACE)(hidden, AttentionView())["bias"]
    rows = torch.arange(20)[:, None]
    assert torch.equal(bias, bias[:, :, :1].expand_as(bias))  # the same for all keys of a query
    torch.testing.assert_close(bias[0, 2:, 0], -(rows[2:, 0] + 1).log())


@pytest.mark.parametrize(
    "name", ["alibi", "learned-slopes", "kerple-power", "kerple-log", "bam", "bam-flat"]
)
def test_interpolation_reads_each_distance_as_a_part_of_it(name: str) -> None:
    positions = SCHEMES[name](LayerShape(4, 32, 64))
    hidden = torch.zeros(1, 9, 32)
    with torch.no_grad():
        plain, stretched = (
            np.asarray(positions(hidden, AttentionView(scaling=scaling))["bias"].tensor(1, 9))
            for scaling in (None, na.Interpolation(4.0))
        )
    # for the last query, keys 4 and 8 tokens back are read as 1 and 2 tokens back
    np.testing.assert_allclose(stretched[..., [4, 0]], plain[..., [7, 6]], rtol=1e-6, atol=1e-7)

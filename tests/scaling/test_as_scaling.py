"""Tests that every argument `scaling` takes names, dicts and objects, by one converter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ntk_alibi as na
from ntk_alibi.methods import as_scaling, parse_method
from ntk_alibi.scaling import scaling_to_config

TAKES: dict[str, Callable[[Any], Any]] = {
    "ALiBi": lambda x: na.ALiBi(16, x),
    "alibi_slopes": lambda x: na.alibi_slopes(16, x, [3000]).tolist(),
    "build_alibi_tensor": lambda x: na.build_alibi_tensor(
        np.ones((1, 9)), 4, np.float32, x
    ).tolist(),
    "AlibiAttention": lambda x: na.AlibiAttention(4, 16, scaling=x).scaling,
    "RoPE": lambda x: na.RoPE(8).stretched(x),
    "plots.slopes": lambda x: _labels_and_heights(x),
    "plots.slopes, several": lambda x: _labels_and_heights([None, x]),
    "plots.slopes, labelled": lambda x: _labels_and_heights({"this": x}),
}

NAMES = ("original", "ntk:4", "max-bias:2", "flat:8", "dynamic-ntk:3", "dynamic-flat")


def _labels_and_heights(scalings: Any) -> list[tuple[Any, Any]]:
    plt = pytest.importorskip("matplotlib.pyplot")
    ax = na.plots.slopes(16, scalings, length=3000)
    drawn = [(line.get_label(), np.asarray(line.get_ydata()).tolist()) for line in ax.get_lines()]
    plt.close(ax.figure)
    return drawn


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("call", TAKES)
def test_a_name_and_a_dict_mean_the_scaling(call: str, name: str) -> None:
    take = TAKES[call]
    scaling = parse_method(name, 2048).scaling
    if call == "RoPE" and name != "ntk:4":
        for given in (name, scaling_to_config(scaling)):
            with pytest.raises((TypeError, ValueError), match="scaling must"):
                take(given)
        return
    expected = take(scaling)
    assert take(scaling_to_config(scaling)) == expected
    if not name.startswith("dynamic"):
        assert take(name) == expected


@pytest.mark.parametrize("call", TAKES)
def test_a_name_that_no_bias_can_follow_is_refused(call: str) -> None:
    refused = {
        "dynamic-flat": r"scaling must have a training length here.*pass .*train_length=2048\), or",
        "ntk:4:logn=0.5": "scaling must be a scaling without a factor of scores, got 'ntk",
        "original:logn=1": "scaling must be a scaling without a factor of scores",
        "knee": "got 'knee': use ntk:FACTOR or flat:FACTOR",
    }
    for name, message in refused.items():
        with pytest.raises(ValueError, match=message):
            TAKES[call](name)
    with pytest.raises(ValueError, match="scaling must have a training length here"):
        TAKES[call]({"alibi_type": "dynamic", "factor": 2.0})
    for wrong in (4.0, na.NTK, b"ntk:4"):
        with pytest.raises(TypeError, match="scaling must be None or an object with a method"):
            TAKES[call](wrong)


@pytest.mark.parametrize(
    ("kind", "example"), [(na.NTK, r"NTK\(4\.0\)"), (na.DynamicNTK, r"DynamicNTK\(\)")]
)
def test_a_class_is_refused_with_an_object_for_it(kind: Any, example: str) -> None:
    """Also where the training length of a model would be filled in."""
    with pytest.raises(TypeError, match=rf"did you mean an object, such as {example}\?"):
        as_scaling(kind, 2048)

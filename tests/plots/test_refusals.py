"""Pictures that are refused, and their errors; no figure stays open."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

import ntk_alibi as na
from ntk_alibi import plots
from pictures import Letters, random_model, stats, summary
from refusals import Table, cases, check_line

REFUSED: Table = {
    "plots.slopes": (plots.slopes, {"num_heads": 4}, [
        ("num_heads", ValueError, {"num_heads": 0}),
        ("scaling", TypeError, {"scalings": na.NTK}),
        ("ax", TypeError, {"ax": 3}),
    ]),
    "plots.receptive_field": (plots.receptive_field, {"biases": na.ALiBi(4)}, [
        ("bias", TypeError, {"biases": 3}),
        ("share", ValueError, {"shares": [2]}),
        ("heads x longest", ValueError, {"biases": na.ALiBi(10_000)}),
    ]),
    "plots.bias_maps": (plots.bias_maps, {"bias": na.ALiBi(4)}, [
        ("heads", ValueError, {"heads": [5]}),
        ("heads", TypeError, {"heads": 3}),
        ("quantity", ValueError, {"quantity": "x"}),
        ("heads x query_length x key_length", ValueError, {"query_length": 20_000}),
    ]),
    "plots.mask": (plots.mask, {"query_length": 4}, [
        ("window", ValueError, {"window": 0}),
        ("query_length x key_length", ValueError, {"query_length": 5000}),
    ]),
    "plots.block_mask": (plots.block_mask, {"mask": np.ones((1, 2, 3, 4), bool)}, [
        ("head", ValueError, {"head": 3}),
        ("mask", ValueError, {"mask": np.ones((1, 2, 0, 4), bool)}),
    ]),
    "plots.blocks": (plots.blocks, {"stats": stats()}, [
        ("batch", ValueError, {"batch": 1}),
        ("stats", TypeError, {"stats": np.ones(3)}),
    ]),
    "plots.accuracy_curves": (plots.accuracy_curves, {"summary": summary(), "task": "lines"}, [
        ("task", ValueError, {"task": "x"}),
        ("summary", TypeError, {"summary": 3}),
    ]),
    "plots.extrapolation_curves": (plots.extrapolation_curves, {"lengths": [1, 2]}, [
        ("values", ValueError, {"values": {"a": [1]}}),
    ]),
    "plots.exact_positions": (plots.exact_positions, {}, [
        ("shares", TypeError, {"shares": 3}),
        ("shares", TypeError, {"shares": {"a": 3}}),
    ]),
    "plots.rounded_positions": (plots.rounded_positions, {}, [
        ("rounded", ValueError, {"rounded": {"a": ([1], [1, 2])}}),
        ("rounded", TypeError, {"rounded": {"a": "b"}}),
    ]),
    "plots.alibi_rows": (plots.alibi_rows, {}, [
        ("rows", ValueError, {"rows": {}}),
        ("rows", TypeError, {"rows": {"a": 3}}),
    ]),
    "plots.attention_maps": (
        plots.attention_maps,
        {"model": random_model(), "tokenizer": Letters(), "text": "x"},
        [
            ("model", TypeError, {"model": "bloom"}),
            ("model", TypeError, {"model": torch.nn.Linear(1, 1)}),
            ("tokenizer", TypeError, {"tokenizer": None}),
            ("text", TypeError, {"text": 3}),
            ("text", ValueError, {"text": "x" * 11586}),
            ("number of tokens of text", ValueError, {"text": ""}),
            ("layers", TypeError, {"layers": []}),
            ("layer", ValueError, {"layers": [2]}),
            ("heads", TypeError, {"heads": 3}),
            ("methods", TypeError, {"methods": "ntk:4"}),
            ("a method", TypeError, {"methods": [4]}),
            ("maps of methods x layers x heads", ValueError, {"methods": ["ntk:2"] * 65}),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("function", "given", "argument", "error"), cases(REFUSED))
def test_a_picture_is_refused(
    function: Any, given: dict[str, Any], argument: str, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        function(**given)
    check_line(caught.value, argument)
    assert plt.get_fignums() == []

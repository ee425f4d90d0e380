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


def attention_maps(text: Any = "x", **options: Any) -> Any:
    return plots.attention_maps(random_model(), Letters(), text, **options)


WRONG_VALUES = [
    (lambda: plots.slopes(0), "num_heads must be between 1"),
    (lambda: plots.receptive_field(na.ALiBi(4), shares=[2]), "share must be"),
    (lambda: plots.bias_maps(na.ALiBi(4), heads=[5]), "heads must be between 1 an"),
    (lambda: plots.bias_maps(na.ALiBi(4), quantity="x"), "quantity must be one of"),
    (lambda: plots.mask(4, window=0), "window must be between 1"),
    (lambda: plots.blocks(stats(), batch=1), "batch must be between 0 and 0"),
    (lambda: plots.block_mask(np.ones((1, 2, 3, 4), bool), head=3), "head must be between 1 and 2"),
    (lambda: plots.block_mask(np.ones((1, 2, 0, 4), bool)), "mask must have pairs to draw, got"),
    (lambda: plots.style("sepia").__enter__(), "theme must be one of 'light', 'd"),
    (lambda: plots.accuracy_curves(summary(), "x"), "task must be one of 'lines'"),
    (
        lambda: plots.extrapolation_curves([1, 2], {"a": [1]}),
        r"values\['a'\] must have 2 values, got 1",
    ),
    (lambda: plots.rounded_positions({"a": ([1], [1, 2])}), "two arrays of one length, got 1 an"),
    (lambda: plots.alibi_rows({}), "rows must have at least one label"),
    (
        lambda: plots.bias_maps(na.ALiBi(8), 20000),
        "heads x query_length x key_length must be at most 536870912 in a picture, got 3200000000",
    ),
    (
        lambda: plots.bias_maps(na.ALiBi(100_000), 32),
        "cells of all heads must be at most 16777216 in a picture, got 102400000",
    ),
    (lambda: plots.mask(5000), "query_length x key_length must be at most 16777216 in"),
    (
        lambda: plots.receptive_field(na.ALiBi(10_000)),
        "heads x longest must be at most 536870912 in a picture, got ",
    ),
    (lambda: plots.slopes(8, []), "a picture must show at least one scaling or bias,"),
    (
        lambda: plots.attention_map(random_model(), Letters(), "x", layer=2),
        "layer must be between -2 and 1, got 2",
    ),
    (lambda: attention_maps(text=""), "number of tokens of text must be between 1"),
    (lambda: attention_maps(text="x" * 11586), "text must have at most 11585 tokens"),
    (
        lambda: attention_maps(methods=["ntk:2"] * 65),
        "maps of methods x layers x heads must be between 1 and 256, got 260",
    ),
]

WRONG_TYPES = [
    (lambda: plots.slopes(8, na.NTK), "scaling must be None or an object"),
    (lambda: plots.receptive_field(3), "bias must be an object with num_heads"),
    (lambda: plots.bias_maps(na.ALiBi(4), heads=3), "heads must be None or heads"),
    (lambda: plots.blocks(np.ones(3)), "stats must come from attention"),
    (lambda: plots.slopes(16, ax=3), "ax must be one matplotlib Axes, or None, got int"),
    (lambda: plots.study_figure({}), r"summary must be a Summary, as .* return it, got \{\}"),
    (lambda: plots.accuracy_curves(3, "lines"), "summary must be a Summary, as .*, got 3"),
    (lambda: plots.exact_positions(3), "shares must be a mapping from labels"),
    (lambda: plots.exact_positions({"a": 3}), r"shares\['a'\] must be a mapping from l"),
    (
        lambda: plots.rounded_positions({"a": "b"}),
        r"rounded\['a'\] must be a pair of one-dimensional arrays",
    ),
    (lambda: plots.alibi_rows({"a": 3}), r"rows\['a'\] must be a one-dimensional array, got 3"),
    (lambda: plots.attention_map(random_model(), None, "x"), "tokenizer must be the model's"),
    (
        lambda: plots.attention_map("bloom", Letters(), "x"),
        "model must be a torch.nn.Module, got str",
    ),
    (
        lambda: plots.attention_map(torch.nn.Linear(1, 1), Letters(), "x"),
        "model must be a transformers model whose config names num_hidden_layers",
    ),
    (lambda: attention_maps(text=3), "text must be a string, got 3"),
    (lambda: attention_maps(layers=[]), "layers must be None or a sequence of layers"),
    (lambda: attention_maps(heads=3), "heads must be None or heads counted from 1"),
    (lambda: attention_maps(methods="ntk:4"), "methods must be None or a sequence of m"),
    (lambda: attention_maps(methods=[4]), "a method must be a name such as 'ntk:4', a"),
]

ROWS = [(call, ValueError, message) for call, message in WRONG_VALUES]
ROWS += [(call, TypeError, message) for call, message in WRONG_TYPES]


@pytest.mark.parametrize(("call", "error", "message"), ROWS)
def test_mistakes_are_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
    assert plt.get_fignums() == []

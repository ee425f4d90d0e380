"""Pictures that are refused, and what the error says; nothing is left open."""

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


def explorer(**options: Any) -> plots.explorer.Explorer:
    methods = options.pop("methods", ["original", "ntk:2", "ntk:8", "knee:4:2"])
    return plots.explore(random_model(), Letters(), "in the beginning", methods, **options)


ROWS = [
    (lambda: plots.slopes(0), ValueError, "num_heads must be between 1"),
    (lambda: plots.slopes(8, na.NTK), TypeError, "scaling must be None or an object"),
    (lambda: plots.receptive_field(na.ALiBi(4), shares=[2]), ValueError, "share must be"),
    (lambda: plots.receptive_field(3), TypeError, "bias must be an object with num_heads"),
    (lambda: plots.bias_maps(na.ALiBi(4), heads=[5]), ValueError, "heads must be between 1 an"),
    (lambda: plots.bias_maps(na.ALiBi(4), heads=3), TypeError, "heads must be None or numbers"),
    (lambda: plots.bias_maps(na.ALiBi(4), quantity="x"), ValueError, "quantity must be one of"),
    (lambda: plots.mask(4, window=0), ValueError, "window must be between 1"),
    (lambda: plots.blocks(np.ones(3)), TypeError, "stats must come from attention"),
    (lambda: plots.blocks(stats(), batch=1), ValueError, "batch must be between 0 and 0"),
    (lambda: plots.style("sepia").__enter__(), ValueError, "theme must be one of 'light', 'd"),
    (
        lambda: plots.accuracy_map([1], [1, 2], [[0.5]]),
        ValueError,
        r"accuracy must have shape \(depths, lengths\) = \(2, 1\), got \(1, 1\)",
    ),
    (lambda: plots.accuracy_map([1], [1], [[50]]), ValueError, "accuracy must be between 0 and"),
    (lambda: plots.accuracy_curves(summary(), "x"), ValueError, "task must be one of 'lines'"),
    (
        lambda: plots.extrapolation_curves([1, 2], {"a": [1]}),
        ValueError,
        r"values\['a'\] must be 2 numbers, got 1",
    ),
    (
        lambda: plots.benchmark_curves([1, 2], {"a": [1, 2, 3]}),
        ValueError,
        r"seconds\['a'\] must be 2 numbers, got 3",
    ),
    (lambda: plots.slopes(16, ax=3), TypeError, "ax must be one matplotlib Axes, or None, got int"),
    (lambda: plots.mask(8, ax="x"), TypeError, "ax must be one matplotlib Axes, or None, got str"),
    (
        lambda: plots.receptive_field(na.ALiBi(4), ax=np.zeros(2)),
        TypeError,
        "ax must be one matplotlib Axes, or None, got ndarray",
    ),
    (lambda: plots.study_figure({}), ValueError, "summary must have methods, train_length, retrie"),
    (lambda: plots.study_figure(3), TypeError, "summary must be the summary of a study, a dict, g"),
    (
        lambda: plots.depth_figure({"methods": {}}),
        ValueError,
        "summary must have train_length, by_depth",
    ),
    (lambda: plots.perplexity_curves({"methods": {}}), ValueError, "summary must have perplexity"),
    (
        lambda: plots.accuracy_curves({}, "lines"),
        ValueError,
        "summary must have methods, train_length, r",
    ),
    (lambda: plots.exact_positions(3), TypeError, "shares must be a mapping from labels"),
    (lambda: plots.exact_positions({"a": 3}), TypeError, r"shares\['a'\] must be a mapping from l"),
    (
        lambda: plots.exact_positions({"a": {8: "b"}}),
        TypeError,
        r"shares\['a'\] must be a row of numbers",
    ),
    (
        lambda: plots.rounded_positions({"a": "b"}),
        TypeError,
        r"rounded\['a'\] must be a pair of rows",
    ),
    (
        lambda: plots.rounded_positions({"a": ([1], [1, 2])}),
        ValueError,
        "two rows of one length, got 1 an",
    ),
    (lambda: plots.alibi_rows({}), ValueError, "rows must have at least one label"),
    (lambda: plots.alibi_rows({"a": 3}), TypeError, r"rows\['a'\] must be a row of numbers, got 3"),
    (
        lambda: plots.attention_map(random_model(), None, "x"),
        TypeError,
        "tokenizer must be the model's",
    ),
    (
        lambda: plots.bias_maps(na.ALiBi(8), 20000),
        ValueError,
        "heads x query_length x key_length must be at most 536870912 in a picture, got 3200000000",
    ),
    (
        lambda: plots.bias_maps(na.ALiBi(100_000), 32),
        ValueError,
        "cells of all heads must be at most 16777216 in a picture, got 102400000",
    ),
    (lambda: plots.mask(5000), ValueError, "query_length x key_length must be at most 16777216 in"),
    (lambda: plots.intervals(30000), ValueError, "query_length x key_length must be at most 53687"),
    (
        lambda: plots.receptive_field(na.ALiBi(10_000)),
        ValueError,
        "heads x longest must be at most 536870912 in a picture, got ",
    ),
    (
        lambda: plots.bias_by_distance(na.ALiBi(2), 2**30),
        ValueError,
        "heads x longest must be at most 536870912 in a picture, got 2147483648",
    ),
    (lambda: plots.slopes(8, []), ValueError, "a picture must show at least one scaling or bias,"),
    (lambda: plots.receptive_field([]), ValueError, "a picture must show at least one scaling or"),
    (lambda: plots.slopes(8, ()), ValueError, "a picture must show at least one scaling or bias,"),
    (lambda: plots.receptive_field(()), ValueError, "a picture must show at least one scaling or"),
    (lambda: plots.slopes(8, {}), ValueError, "a picture must show at least one scaling or bias,"),
    (lambda: plots.receptive_field({}), ValueError, "a picture must show at least one scaling or"),
    (
        lambda: plots.attention_map(random_model(), Letters(), "x", layer=2),
        ValueError,
        "layer must be between -2 and 1, got 2",
    ),
    (
        lambda: plots.attention_map(random_model(), Letters(), "x", head=0),
        ValueError,
        "heads must be between 1 and 4, got 0",
    ),
    (
        lambda: plots.attention_map("bloom", Letters(), "x"),
        TypeError,
        "model must be a torch.nn.Module, got str",
    ),
    (
        lambda: plots.attention_map(torch.nn.Linear(1, 1), Letters(), "x"),
        TypeError,
        "model must be a transformers model whose config names num_hidden_layers",
    ),
    (lambda: attention_maps(text=""), ValueError, "number of tokens of text must be between 1"),
    (lambda: attention_maps(text=3), TypeError, "text must be a string, got 3"),
    (lambda: attention_maps(text="x" * 11586), ValueError, "text must have at most 11585 tokens"),
    (lambda: attention_maps(layers=[]), TypeError, "layers must be None or numbers of layers"),
    (lambda: attention_maps(heads=3), TypeError, "heads must be None or numbers of heads"),
    (lambda: attention_maps(methods="ntk:4"), TypeError, "methods must be None or a sequence of m"),
    (lambda: attention_maps(methods=["nkt:4"]), ValueError, "method must be original or one of"),
    (lambda: attention_maps(methods=[4]), TypeError, "a method must be a name such as 'ntk:4', a"),
    (lambda: attention_maps(methods=[na.NTK]), TypeError, "a method must be a name such as 'ntk:4"),
    (
        lambda: attention_maps(methods=["ntk:2"] * 65),
        ValueError,
        "maps of methods x layers x heads must be at most 256 in a picture, got 260",
    ),
]

OF_THE_EXPLORER = [
    (lambda: explorer(cells=0), ValueError, "cells must be between 1"),
    (lambda: explorer(cells=1025), ValueError, "cells must be at most 1024 for 32 maps of methods"),
    (
        lambda: explorer(methods=[f"ntk:{n}" for n in range(1, 4098)]),
        ValueError,
        "methods or layers must be fewer: a page holds at most 32768 maps of methods x layers",
    ),
    (lambda: explorer(methods=["ntk:2", na.NTK(2.0)]), ValueError, "methods must differ, got"),
    (lambda: explorer(methods=[]), ValueError, r"methods must hold at least one, got \[\]"),
    (lambda: explorer(methods="ntk:2"), TypeError, "methods must be None or a sequence"),
    (lambda: explorer(methods=["nkt:2"]), ValueError, "method must be original or one of"),
    (lambda: explorer(layers=[2]), ValueError, "layer must be between -2 and 1, got 2"),
    (lambda: explorer(heads=[0]), ValueError, "heads must be between 1 and 4, got 0"),
    (lambda: explorer().save("weights.pdf"), ValueError, "the ending of path must be one of '.htm"),
    (lambda: explorer().save(3), TypeError, "path must be a string or a path, got 3"),
    (
        lambda: plots.explore(random_model(), None, "x"),
        TypeError,
        "tokenizer must be the model's token",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), ROWS)
def test_mistakes_are_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
    assert plt.get_fignums() == []


@pytest.mark.parametrize(("call", "error", "message"), OF_THE_EXPLORER)
def test_mistakes_of_the_explorer_are_named(
    call: Any, error: type[Exception], message: str
) -> None:
    pytest.importorskip("bokeh", reason="bokeh is not installed")
    with pytest.raises(error, match=message):
        call()

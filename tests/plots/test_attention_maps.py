"""Pictures of attention weights show the weights of the model, at any length and of any head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

import ntk_alibi as na
from ntk_alibi import plots
from ntk_alibi.models.attention_weights import attention_weights
from pictures import Letters, random_model, weights_of
from small_models import MAKERS, make_model


@pytest.mark.parametrize("scaling", [None, na.NTK(8.0)])
def test_a_map_is_the_models_weights(scaling: Any) -> None:
    model, text = random_model(), "in the beginning"
    with na.patch(model, scaling, attention="eager"):
        axes = plots.attention_map(model, Letters(), text, layer=0, head=4)
    shown = axes.images[0].get_array()
    np.testing.assert_array_equal(shown.filled(0.0), weights_of(text, scaling)[0, 3])
    np.testing.assert_array_equal(np.ma.getmaskarray(shown), ~np.tril(np.ones((16, 16), bool)))
    assert axes.get_xticklabels()[0].get_text() == f"<{ord('i') % 99}>"
    assert (
        axes.get_title() == "Attention of layer 0, head 4 (a model with layers 0-1 and heads 1-4)"
    )


@pytest.mark.parametrize("tokens", [401, 900])
def test_a_cell_of_a_long_text_shows_the_greatest_weight(tokens: int) -> None:
    model, text = random_model(), "abc" * (tokens // 3) + "x" * (tokens % 3)
    axes = plots.attention_map(model, Letters(), text, layer=1, head=2)
    expected = weights_of(text)[1, 1]
    step = -(-tokens // plots.attention_maps.__globals__["MOST_CELLS"])
    shown = axes.images[0].get_array()
    for row, column in ((0, 0), (100, 7), (shown.shape[0] - 1, 3), (shown.shape[0] - 1, -1)):
        column %= shown.shape[1]
        cell = expected[row * step : (row + 1) * step, column * step : (column + 1) * step]
        assert shown[row, column] == cell.max()
    assert np.ma.getmaskarray(shown)[0, 1]
    assert axes.get_xlim() == (-0.5, tokens - 0.5)


def test_heads_and_methods_are_side_by_side() -> None:
    model, text, methods = random_model(), "in the beginning", [None, "ntk:8", na.FlatHeads(4.0)]
    figure = plots.attention_maps(
        model, Letters(), text, methods=methods, heads=[1, 4], layers=None
    )
    *panels, _ = figure.axes
    titles = [axes.get_title().splitlines() for axes in panels]
    assert [place for place, _ in titles[::3]] == [
        f"layer {layer}, head {head}" for layer in (0, 1) for head in (1, 4)
    ]
    assert [label for _, label in titles[:3]] == ["original", "ntk:8", "flat:4"]
    for number, scaling in enumerate((None, na.NTK(8.0), na.FlatHeads(4.0))):
        shown = panels[9 + number].images[0].get_array().filled(0.0)
        np.testing.assert_array_equal(shown, weights_of(text, scaling)[1, 3])
    assert len({axes.images[0].get_clim() for axes in panels}) == 1
    assert na.patched(model) == []


@pytest.mark.parametrize("family", MAKERS)
def test_all_families_are_read(family: str) -> None:
    model = make_model(family)  # whose vocabulary has few tokens
    most = {"most_maps": 256, "most_cells": 16}
    values = attention_weights(
        model, Letters(), "cdefghijklmn", ["original", "ntk:4"], **most
    ).values
    assert values.shape[:2] == (2, model.config.num_hidden_layers)
    np.testing.assert_allclose(np.nansum(values, axis=-1), 1.0, rtol=1e-5)  # sums of 12 in float32
    assert (np.abs(values[0] - values[1]) > 1e-4).any()


def test_models_without_a_patch_of_ours_are_drawn() -> None:
    config = transformers.GPT2Config(vocab_size=99, n_embd=16, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel._from_config(config, attn_implementation="eager").eval()
    axes = plots.attention_map(model, Letters(), "letters", layer=1, head=2)
    expected = model(**Letters()("letters", "pt"), output_attentions=True).attentions[1][0, 1]
    np.testing.assert_array_equal(axes.images[0].get_array().filled(0), expected.detach().numpy())


def test_a_model_of_nan_is_refused_and_left_as_it_was() -> None:
    model = make_model("bloom")
    model.transformer.h[0].self_attention.query_key_value.weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="model must compute attention weights without NaN"):
        plots.attention_maps(model, Letters(), "cdef", methods=["ntk:4"])
    assert na.patched(model) == []
    assert not model.transformer.h[0].self_attention._forward_hooks

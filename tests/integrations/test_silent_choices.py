"""Tests that a patch says what it takes for a setting that nobody gave, or ignores."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BloomConfig, BloomModel

import ntk_alibi as na
from ntk_alibi.models import load


def bloom(**config: Any) -> BloomModel:
    return BloomModel(BloomConfig(vocab_size=8, hidden_size=32, n_layer=1, n_head=4, **config))


DYNAMIC = {"alibi_type": "dynamic", "factor": 2.0}


@pytest.mark.parametrize(
    "method", ["dynamic-flat", "ntk:4:logn=0.5", na.DynamicNTK(2.0), DYNAMIC], ids=repr
)
def test_a_training_length_that_nobody_stated_is_said_once(method: Any) -> None:
    with pytest.warns(UserWarning, match=r"^train_length is 2048, which is BLOOM's") as caught:
        na.patch(bloom(), method)
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "method",
    [None, "ntk:4", na.NTK(4.0), na.DynamicNTK(2.0, 64), na.KerpleLog([1.0] * 4, 1.0)],
    ids=repr,
)
def test_a_method_without_a_training_length_says_nothing(method: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        na.patch(bloom(), method)
        na.patch(bloom(seq_length=64), "dynamic-flat")


def test_load_says_the_training_length_that_it_took(tmp_path: Path) -> None:
    model, tokenizer, _ = load()
    del model.config.seq_length
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"^the training length is 2048, .* set config.seq_length"):
        assert load(tmp_path)[2] == 2048


def test_a_scaling_of_rotations_is_said_to_have_no_effect() -> None:
    model = bloom()
    vars(model.config)["rope_scaling"] = {"type": "linear", "factor": 4.0}
    for method in ("original", "ntk:4"):
        with pytest.warns(UserWarning, match="rope_scaling of the .* no effect, got 'linear'"):
            na.patch(model, method)
    del vars(model.config)["rope_scaling"]
    model.config.rope_parameters = {"rope_type": "dynamic", "factor": 4.0}
    with pytest.warns(UserWarning, match="rope_parameters of the .* no effect, got 'dynamic'"):
        na.patch(model)
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 1e4}
    na.patch(model, "ntk:4")


@pytest.mark.parametrize("family", ["bloom", "mpt", "falcon"])
def test_padding_on_the_right_of_a_prompt_is_warned_of(
    models: dict[str, Any],
    family: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """transformers asks for left padding by name, of patched models, too."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    model, ids = models[family], torch.tensor([[5, 6, 7, 3], [4, 5, 6, 7]])
    with na.patch(model, "ntk:4"):
        model.generate(
            ids, attention_mask=(ids != 3).long(), pad_token_id=3, max_new_tokens=1, do_sample=False
        )
    assert "please set `padding_side='left'`" in caplog.text

"""What a graph holds and refuses, and the check of what was written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import ntk_alibi as na
from ntk_alibi.engines.graph import MASK, Graph, lines
from small_models import make_model


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model("bloom", layers=1)


@pytest.mark.parametrize(
    ("scaling", "options", "message"),
    [
        (na.DynamicNTK(64), {}, "method must be static with attention='traceable'"),
        (na.NTK(4.0), {"window": 8}, "window, sink and causal_block must not be given"),
        (na.ALiBi(8), {}, "attention with a bias must be one of"),
    ],
    ids=["dynamic", "window", "bias"],
)
def test_what_a_graph_cannot_hold_is_refused(
    model: Any, scaling: Any, options: Any, message: str, tmp_path: Path
) -> None:
    with na.patch(model, scaling, **options) as handle:
        with pytest.raises(ValueError, match=message):
            na.export(model, tmp_path / "a-torch")
        assert list(map(repr, na.patched(model))) == [repr(handle)]
    assert os.listdir(tmp_path) == []


def test_models_that_have_no_graph_are_refused(model: Any, tmp_path: Path) -> None:
    t5 = transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    )
    for wrong, message in (
        (model.transformer, "model must have a language model head .* got BloomModel"),
        (t5.encoder, "model must have a language model head .* got T5Stack"),
    ):
        with pytest.raises(ValueError, match=message):
            na.export(wrong, tmp_path / "a-torch")
    assert os.listdir(tmp_path) == []


def test_a_model_that_computes_nan_is_refused_before_it_is_traced(tmp_path: Path) -> None:
    model = make_model("bloom", layers=1)
    model.transformer.ln_f.bias.data[0] = float("nan")
    with pytest.raises(ValueError, match="model must compute finite logits"):
        na.export(model, tmp_path / "a-torch")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("wrong", [0.0, 1e-2, float("nan")])
def test_a_graph_that_computes_something_else_is_an_error(cached: bool, wrong: float) -> None:
    """Such as one whose engine rounds, or miscounts the tokens in its cache."""
    expected = torch.arange(2 * 15 * 3.0).reshape(2, 15, 3) / 45
    inputs: dict[str, Any] = {"input_ids": (), "attention_mask": ()}
    outputs: dict[str, Any] = {"logits": ("batch_size", "sequence_length", 3)}
    if cached:
        inputs["past_key_values.0.key"] = "batch_size", 2, "past_sequence_length", 4
        outputs["present.0.key"] = inputs["past_key_values.0.key"]
    graph: Any = Graph(None, inputs, outputs, torch.float32, expected)  # type: ignore[arg-type]

    def call(tokens: torch.Tensor, mask: torch.Tensor, past: list[torch.Tensor]) -> Any:
        before = sum(x.shape[2] for x in past)
        assert mask.shape == (2, before + tokens.shape[1])
        logits = expected[:, before : mask.shape[1]].clone()
        logits[~MASK[:, before : mask.shape[1]].bool()] = 7.0  # padding may give anything
        logits[1, -1] += wrong
        return logits, [torch.zeros(2, 2, mask.shape[1], 4) for _ in past]

    if wrong == 0.0:
        assert "within 0.0e+00 of the patched model's, by X 1" in graph.compare(
            "X 1", call, "float32"
        )
        return
    with pytest.raises(RuntimeError, match="X 1 computes the exported graph otherwise than torch"):
        graph.compare("X 1", call, "float32")


def test_lines_of_inputs() -> None:
    axes = "batch_size", 8, "past_sequence_length", 16
    named: dict[str, Any] = {"input_ids": ("batch_size", "sequence_length")}
    named |= {f"past_key_values.{i}.{kind}": axes for i in (0, 1) for kind in ("key", "value")}
    assert lines(named, torch.float16) == (
        "input_ids (batch_size, sequence_length) int64",
        "past_key_values.N.key, .value (batch_size, 8, past_sequence_length, 16) float16",
    )

"""Plans, records, models and answers that are refused, before a model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ntk_alibi as na
from ntk_alibi.evaluation import score_lines, score_topics
from ntk_alibi.evaluation.comparing import length_study
from ntk_alibi.evaluation.comparing.plan import Plan
from ntk_alibi.evaluation.harness import datasets
from ntk_alibi.evaluation.harness.model import StretchedLM
from ntk_alibi.models import load
from ntk_alibi.models.checked_loader import WholeCausalLM

pytestmark = pytest.mark.slow  # needs the evaluation harness


def plan(**options: Any) -> Plan:
    return Plan(**{"train_length": 2048, **options})


def lines(**options: Any) -> Any:
    return datasets.retrieval("lines", **options)


Row = tuple[Callable[..., Any], str, dict[str, Any]]

#: A function, the first word of its error, and arguments of which one is wrong.
WRONG_VALUES: list[Row] = [
    (plan, "train_length", {"train_length": 0}),
    (plan, "methods", {"methods": ()}),
    (plan, "methods", {"methods": "ntk:2"}),
    (plan, "method", {"methods": ("nkt:2",)}),
    (plan, "multiples", {"multiples": (0.0,)}),
    (plan, "multiples", {"multiples": (1000000.0,)}),
    (plan, "line_records", {"line_records": -1}),
    (plan, "line_records", {"line_records": 10**6}),
    (plan, "line_questions", {"line_questions": 0}),
    (plan, "prose_windows", {"prose_windows": 10**6}),
    (plan, "line_records,", {"line_records": 0, "topic_records": 0, "prose_windows": 0}),
    (plan, "seed", {"seed": -1}),
    (plan, "lengths", {"lengths": ()}),
    (plan, "lengths", {"lengths": (5_000_000,)}),
    (datasets.retrieval, "kind", {"kind": "riddles"}),
    (lines, "length", {"lengths": [10]}),
    (lines, "lengths", {"lengths": [0]}),
    (lines, "lengths", {"lengths": []}),
    (lines, "records", {"records": 0}),
    (lines, "seed", {"seed": -1}),
    (datasets.retrieval, "length", {"kind": "passkey", "lengths": [9], "questions": 1}),
    (datasets.sliding_prose, "context", {"context": 1}),
    (datasets.prose, "windows", {"windows": 0}),
    (datasets.prose, "stride", {"stride": 0}),
    (datasets.prose, "context", {"context": -1}),
    (datasets.prose, "bins", {"lengths": [64], "bins": 64}),
    (datasets.prose, "lengths", {"lengths": [1]}),
    (datasets.prose, "/dev/null", {"text": "/dev/null"}),
    (StretchedLM, "method", {"method": "yarn:2"}),
    (StretchedLM, "attention", {"attention": "flash"}),
    (StretchedLM, "train_length", {"train_length": 0}),
    (StretchedLM, "truncation", {"truncation": "right"}),
    (StretchedLM, "max_length", {"max_length": 1}),
    (StretchedLM, "max_length", {"batch_size": "auto"}),
    (StretchedLM, "batch_size", {"batch_size": "-1"}),
    (StretchedLM, "model_args", {"methods": "ntk:4"}),
    (StretchedLM, "model_args", {"scaling": "ntk", "factor": 4}),
    (StretchedLM, "model_args", {"pretrained": torch.nn.Linear(1, 1), "fast": 1}),
    (score_topics, "topics", {"prediction": "x", "topics": []}),
]

WRONG_TYPES: list[Row] = [
    (plan, "line_records", {"line_records": (1, 2)}),
    (plan, "multiples", {"multiples": ("1",)}),
    (plan, "prose_windows", {"prose_windows": 1.5}),
    (lines, "seed", {"seed": "x"}),
    (lines, "tokenizer", {"tokenizer": 5}),
    (datasets.prose, "text", {"text": 5}),
    (StretchedLM, "share_prefixes", {"share_prefixes": 1}),
    (StretchedLM, "batch_size", {"batch_size": "x"}),
    (StretchedLM, "pretrained", {"pretrained": 5}),
    (score_lines, "prediction", {"prediction": 5, "expected": 5}),
    (score_lines, "prediction", {"prediction": "5", "expected": "5"}),
    (score_topics, "prediction", {"prediction": "x", "topics": "x"}),
]

ROWS = [(ValueError, *row) for row in WRONG_VALUES] + [(TypeError, *row) for row in WRONG_TYPES]


@pytest.mark.parametrize(("error", "function", "word", "options"), ROWS)
def test_an_error_begins_with_the_argument_in_one_line(
    error: type[Exception],
    function: Callable[..., Any],
    word: str,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WholeCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(error) as raised:
        function(**options)
    message = str(raised.value)
    assert message.startswith(f"{word} ")
    assert "must" in message
    assert "\n" not in message


def test_misspelt_arguments_of_a_model_are_told_the_right_one() -> None:
    for options, advice in (
        ({"methods": "ntk:4"}, "did you mean method?"),
        ({"scaling": "ntk"}, "method names both, such as method=ntk:4"),
    ):
        with pytest.raises(ValueError, match="model_args must") as raised:
            StretchedLM(**options)
        assert str(raised.value).endswith(advice)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("path", 3, TypeError),
        ("path", "file", ValueError),
        ("plan", 3, TypeError),
        ("plan", Plan, TypeError),
        ("tokenizer", None, TypeError),
        ("tokenizer", "the model", TypeError),
        ("model", "nano-bloom", TypeError),
    ],
)
def test_wrong_arguments_of_a_study_are_named_before_any_work(
    name: str,
    value: Any,
    error: type[Exception],
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("x")
    model, tokenizer, _ = load(tiny_checkpoint)
    given: Any = {"model": model, "tokenizer": tokenizer, "plan": plan(), "path": tmp_path}
    given[name] = model if value == "the model" else value
    with pytest.raises(error, match=f"^{name} must"):
        length_study.evaluate(**given)
    assert not na.patched(model)

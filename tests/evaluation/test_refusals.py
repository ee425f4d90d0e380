"""Plans, records, models and answers that are refused, before a model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ntk_alibi as na
from ntk_alibi.evaluation import score_lines, score_topics
from ntk_alibi.evaluation.comparing import length_study
from ntk_alibi.evaluation.comparing.plan import Plan
from ntk_alibi.models import load


def plan(**options: Any) -> Plan:
    return Plan(**{"train_length": 2048, **options})


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
    (score_topics, "topics", {"prediction": "x", "topics": []}),
]

WRONG_TYPES: list[Row] = [
    (plan, "line_records", {"line_records": (1, 2)}),
    (plan, "multiples", {"multiples": ("1",)}),
    (plan, "prose_windows", {"prose_windows": 1.5}),
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
) -> None:
    with pytest.raises(error) as raised:
        function(**options)
    message = str(raised.value)
    assert message.startswith(f"{word} ")
    assert "must" in message
    assert "\n" not in message


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

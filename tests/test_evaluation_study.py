"""Studies: what is measured, resumed, summarised, drawn."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from ntk_alibi.evaluation.journal import Journal
from rich.console import Console
from torch.nn import functional as F

import ntk_alibi as na
from ntk_alibi.evaluation import report, retrieval, study
from ntk_alibi.evaluation.methods import DEFAULT_METHODS, parse_method
from ntk_alibi.evaluation.tasks import Lines
from ntk_alibi.models import load
from ntk_alibi.plots import study_figure

PLAN = study.Plan(
    256,
    methods=("original", "ntk:2", "interpolation:2", "interpolation:4"),
    multiples=(1, 2),
    line_records=2,
    line_questions=2,
    topic_records=2,
    topic_questions=2,
    prose_windows=2,
)


@pytest.fixture(scope="module")
def summary(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    model, tokenizer, _ = load(tiny_checkpoint)
    path = tmp_path_factory.mktemp("study") / "study.jsonl"
    return study.evaluate(model, tokenizer, PLAN, path, quiet=True)


def test_every_cell_is_there(summary: dict[str, Any]) -> None:
    cells = {(c["task"], c["method"], c["multiple"]): c for c in summary["retrieval"]}
    assert len(cells) == len(summary["retrieval"]) == 2 * 4 * 2
    for cell in cells.values():
        assert cell["cases"] == 4
        assert 0 <= cell["low"] <= cell["accuracy"] <= cell["high"] <= 1
    assert sum(c["cases"] for c in summary["by_distance"] if c["method"] == "ntk:2") == 16
    assert len(summary["perplexity"]) == 4 * 4
    assert json.loads(json.dumps(summary)) == summary


def test_perplexity_is_paired_with_the_first_method(summary: dict[str, Any]) -> None:
    by_method = {
        name: [e for e in summary["perplexity"] if e["method"] == name] for name in PLAN.methods
    }
    for i, first in enumerate(by_method["original"]):
        assert (first["difference"], first["half_width"]) == (0.0, 0.0)
        for name in PLAN.methods:
            entry = by_method[name][i]
            assert entry["nats"] - first["nats"] == pytest.approx(entry["difference"], abs=1e-9)
            assert (entry["begin"], entry["end"]) == (i / 2, (i + 1) / 2)


def test_an_interrupted_study_resumes(
    tiny_checkpoint: Path, tmp_path: Path, summary: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer, _ = load(tiny_checkpoint)
    measured = []

    def stop_after_ten(*arguments: Any) -> Any:
        measured.append(1)
        if len(measured) == 11:
            raise KeyboardInterrupt
        return retrieval.answers_right(*arguments)

    monkeypatch.setattr(study, "answers_right", stop_after_ten)
    path = tmp_path / "study.jsonl"
    with pytest.raises(KeyboardInterrupt):
        study.evaluate(model, tokenizer, PLAN, path, quiet=True)
    resumed = study.evaluate(model, tokenizer, PLAN, path, quiet=True)
    assert resumed == summary
    assert len(measured) == 1 + 2 * 4 * 2 * 2  # the interrupted one twice
    with pytest.raises(ValueError, match="holds results of other work"):
        study.evaluate(model, tokenizer, replace(PLAN, seed=1), path, quiet=True)


def test_answers_are_those_of_greedy_decoding() -> None:
    """On the trained model: questions answered one by one by generating."""
    model, tokenizer, length = load()
    case = Lines(6).case(retrieval.encoder(tokenizer), length, np.random.default_rng(3))
    with na.patch(model, na.NTK(2.0)):
        right = retrieval.answers_right(model, case)
        for (begin, end), expected in zip(case.answers, right, strict=True):
            prompt = torch.from_numpy(case.tokens[:begin])[None]
            tokens = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=end - begin,
                do_sample=False,
            )
            assert (tokens[0, begin:].numpy() == case.tokens[begin:end]).all() == expected


def test_negative_log_likelihood(tiny_checkpoint: Path) -> None:
    model, tokenizer, _ = load(tiny_checkpoint)
    window = np.arange(65) % len(tokenizer)
    nats = retrieval.negative_log_likelihood(model, window, 4)
    tokens = torch.from_numpy(window)
    with torch.no_grad():
        expected = F.cross_entropy(model(tokens[None]).logits[0, :-1], tokens[1:], reduction="none")
    np.testing.assert_allclose(nats, expected.double().reshape(4, 16).mean(1), rtol=1e-6)


def test_too_little_prose_is_an_error() -> None:
    with pytest.raises(ValueError, match="prose must hold 3 windows of 5 tokens, has 14"):
        retrieval.prose_windows(lambda texts: [[1] * 7 for _ in texts], ["a", "b"], 5, 3)


def test_parse_method() -> None:
    assert parse_method("original", 100).scaling is None
    assert parse_method("ntk:4", 100).scaling == na.NTK(4.0)
    assert parse_method("interpolation:1.5", 100).label == "interpolation a=1.5"
    assert parse_method("dynamic-ntk:2", 100).scaling == na.DynamicNTK(2.0, 100)
    assert parse_method("dynamic-interpolation:1", 9).scaling == na.DynamicInterpolation(1.0, 9)
    assert [parse_method(name, 1).name for name in DEFAULT_METHODS] == list(DEFAULT_METHODS)


@pytest.mark.parametrize("name", ["ntk", "original:2", "yarn:2", "ntk:four", ":2", ""])
def test_parse_method_says_what_it_knows(name: str) -> None:
    with pytest.raises(ValueError, match="method must be original or one of interpolation:NUMBER"):
        parse_method(name, 100)


def test_tables(summary: dict[str, Any]) -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    tables = report.study_tables(summary)
    for table in tables:
        console.print(table)
    text = console.export_text()
    assert len(tables) == 5
    for expected in ("NTK a=2", "lines: accuracy", "topics: accuracy", "nats a token by position"):
        assert expected in text


@pytest.mark.parametrize("prose", [True, False])
def test_figure(summary: dict[str, Any], prose: bool, tmp_path: Path) -> None:
    summary = summary if prose else {**summary, "perplexity": []}
    figure = study_figure(summary)
    assert isinstance(figure, Figure)
    assert len(figure.axes) == 4 + prose
    for axes in figure.axes[:4]:
        assert len(axes.get_lines()) >= 4
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_empty_journals_are_not_summarised(tmp_path: Path) -> None:
    with Journal(tmp_path / "j.jsonl", {}) as journal, pytest.raises(KeyError):
        study.summarise(PLAN, journal)

"""LongEval's own files: reading, answering in batches, resuming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from ntk_alibi.evaluation.journal import Journal

import ntk_alibi as na
from ntk_alibi.evaluation.longeval import LongEvalCase, Truncation, answer, read_cases
from ntk_alibi.models import load


@pytest.mark.parametrize(
    ("name", "task", "tokens"),
    [
        ("lines_200", "longeval-lines", "line torpid-kid"),
        ("lines_300", "longeval-lines", "line racial-fedora"),
        ("topics_5", "longeval-topics", "first topic"),
        ("topics_10", "longeval-topics", "first topic"),
    ],
)
def test_reading_the_published_files(longeval: Path, name: str, task: str, tokens: str) -> None:
    cases = read_cases(longeval / f"{name}.jsonl", task)
    assert [case.number for case in cases] == list(range(1, 51))
    assert tokens in cases[0].prompt
    for case in cases:
        answer = case.expected if isinstance(case.expected, int) else case.expected[0]
        assert str(answer).lower() in case.prompt.lower()
        assert case.is_right(f"It is {answer}.")
        assert not case.is_right("It is 17 apples.")


LINE = {"prompt": "What?", "expected_number": 5}


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ("{", "Expecting property name"),
        ("", "Expecting value"),
        ("[1]", r"expected an object, got b?'\[1\]"),
        ('{"prompt": "What?"}', "key 'expected_number' is missing"),
        ('{"prompt": 5, "expected_number": 5}', "prompt must be a string, got 5"),
        ('{"prompt": "What?", "expected_number": "five"}', "invalid literal"),
        ("\udcff", "can't decode byte"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, second: str, reason: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_bytes(f"{json.dumps(LINE)}\n{second}\n".encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=rf"cases.jsonl, line 2: no case of .*: .*{reason}"):
        read_cases(path, "longeval-lines")


@pytest.mark.parametrize("topics", ["[]", '"a"', "[1]", "null"])
def test_broken_topics_are_named(tmp_path: Path, topics: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(f'{{"prompt": "What?", "topics": {topics}}}\n')
    with pytest.raises(ValueError, match=r"line 1: .*topics must be a list of strings"):
        read_cases(path, "longeval-topics")


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ValueError, match=r"empty.jsonl must hold at least one case, is empty"):
        read_cases(tmp_path / "empty.jsonl", "longeval-lines")
    with pytest.raises(FileNotFoundError):
        read_cases(tmp_path / "none.jsonl", "longeval-lines")
    with pytest.raises(ValueError, match=r"task must be one of longeval-lines, .*, got 'lines'"):
        read_cases(tmp_path / "empty.jsonl", "lines")


def test_truncation_leaves_out_the_middle() -> None:
    assert Truncation(4)(list(range(10))) == [0, 1, 8, 9]
    assert Truncation(5)(list(range(10))) == [0, 1, 2, 8, 9]
    assert Truncation(10)(list(range(10))) == list(range(10))
    assert Truncation()(list(range(10))) == list(range(10))
    assert str(Truncation()) == "none: prompts are read whole"
    assert "beyond 4 tokens lose their middle" in str(Truncation(4))


CASES = [LongEvalCase(i, "line amber-acorn is <12>. " * i, 12) for i in (3, 1, 4, 2, 5)]


def run(checkpoint: Path, path: Path, **options: Any) -> list[Any]:
    model, tokenizer, _ = load(checkpoint)
    with Journal(path, {}) as journal, na.patch(model, na.NTK(4.0)):
        return list(
            answer(model, tokenizer, CASES, "longeval-lines", journal, label="ntk:4", **options)
        )


def test_batches_answer_as_single_prompts_do(tiny_checkpoint: Path, tmp_path: Path) -> None:
    single = run(tiny_checkpoint, tmp_path / "single.jsonl")
    batched = run(tiny_checkpoint, tmp_path / "batched.jsonl", batch_size=3)
    assert sorted(r["number"] for r in single) == [1, 2, 3, 4, 5]
    assert sorted(map(json.dumps, single)) == sorted(map(json.dumps, batched))
    model, tokenizer, _ = load(tiny_checkpoint)
    ids = torch.tensor([tokenizer(CASES[0].prompt)["input_ids"]])
    with na.patch(model, na.NTK(4.0)):
        tokens = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False
        )
    first = next(r for r in single if r["number"] == 3)
    assert first["prediction"] == tokenizer.decode(tokens[0, ids.shape[1] :])
    assert first["prompt_tokens"] == ids.shape[1]


def test_an_interrupted_run_resumes(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tiny_checkpoint, tmp_path / "whole.jsonl")
    path = tmp_path / "interrupted.jsonl"
    model, tokenizer, _ = load(tiny_checkpoint)
    with Journal(path, {}) as journal, na.patch(model, na.NTK(4.0)):
        for i, _ in enumerate(
            answer(model, tokenizer, CASES, "longeval-lines", journal, label="ntk:4")
        ):
            if i == 1:
                break
    calls = []
    generate = type(model).generate
    monkeypatch.setattr(
        type(model), "generate", lambda *a, **kw: calls.append(1) or generate(*a, **kw)
    )
    resumed = run(tiny_checkpoint, path)
    assert len(calls) == 3
    assert sorted(map(json.dumps, resumed)) == sorted(map(json.dumps, whole))


def test_truncated_prompts(tiny_checkpoint: Path, tmp_path: Path) -> None:
    results = run(tiny_checkpoint, tmp_path / "r.jsonl", truncation=Truncation(8))
    assert [r["prompt_tokens"] for r in results] == [8] * 5

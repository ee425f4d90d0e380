"""LongEval's files: parsing, file names, and harness tasks on them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import search_tasks_in
from ntk_alibi.evaluation.harness import longeval_files
from ntk_alibi.evaluation.harness.command import main
from ntk_alibi.evaluation.harness.longeval_files import cases, find_file, read_cases

pytestmark = pytest.mark.slow  # needs the evaluation harness


@pytest.mark.parametrize(
    ("name", "task", "tokens"),
    [
        ("lines_200", "lines", "line torpid-kid"),
        ("lines_300", "lines", "line racial-fedora"),
        ("topics_5", "topics", "first topic"),
        ("topics_10", "topics", "first topic"),
    ],
)
def test_reading_the_published_files(longeval: Path, name: str, task: str, tokens: str) -> None:
    found = read_cases(longeval / f"{name}.jsonl", task)
    assert [case["number"] for case in found] == list(range(1, 51))
    assert tokens in found[0]["prompt"]
    for case in found:
        answer = case["expected"][0]
        assert answer.lower() in case["prompt"].lower()
        assert longeval_files.score_answer(case, [f"It is {answer}."])["accuracy"]
        assert not longeval_files.score_answer(case, ["It is 17 apples."])["accuracy"]


LINE = {"prompt": "What?", "expected_number": 5}


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ("{", "Expecting property name"),
        ("", "Expecting value"),
        ("[1]", r"expected an object, got b?'\[1\]"),
        ('{"prompt": "What?"}', "key 'expected_number' is missing"),
        ('{"prompt": 5, "expected_number": 5}', "prompt must be a string .*, got 5"),
        ('{"prompt": "", "expected_number": 5}', "prompt must be a string that is not empty"),
        (r'{"prompt": "\ud800", "expected_number": 5}', "surrogates not allowed"),
        ('{"prompt": "What?", "expected_number": Infinity}', "must be an integer, got inf"),
        ('{"prompt": "What?", "expected_number": 1e400}', "must be an integer, got inf"),
        ('{"prompt": "What?", "expected_number": 5.7}', "must be an integer, got 5.7"),
        ('{"prompt": "What?", "expected_number": true}', "must be an integer, got True"),
        ('{"prompt": "What?", "expected_number": -5}', "expected_number must be between 0"),
        ("[" * 200000, "too many nested brackets"),
        ('{"prompt": "What?", "expected_number": "five"}', "invalid literal"),
        ("\udcff", "can't decode byte"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, second: str, reason: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_bytes(f"{json.dumps(LINE)}\n{second}\n".encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=rf"cases.jsonl, line 2: no case of .*: .*{reason}"):
        read_cases(path, "lines")


@pytest.mark.parametrize("topics", ["[]", '"a"', "[1]", "null", '[""]'])
def test_broken_topics_are_named(tmp_path: Path, topics: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(f'{{"prompt": "What?", "topics": {topics}}}\n')
    with pytest.raises(ValueError, match=r"line 1: .*topics must be a "):
        read_cases(path, "topics")


def test_files_without_cases(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ValueError, match=r"empty.jsonl must hold at least one case, got none"):
        read_cases(tmp_path / "empty.jsonl", "lines")
    with pytest.raises(FileNotFoundError):
        read_cases(tmp_path / "none.jsonl", "lines")
    with pytest.raises(ValueError, match=r"kind must be one of 'lines', 'topics', got 'riddles'"):
        read_cases(tmp_path / "empty.jsonl", "riddles")


def test_files_are_found_in_the_folders_of_longeval(tmp_path: Path) -> None:
    theirs = tmp_path / "lines" / "testcases"
    theirs.mkdir(parents=True)
    (theirs / "200_lines.jsonl").write_text(json.dumps(LINE))
    assert find_file(tmp_path, "lines", 200) == theirs / "200_lines.jsonl"
    assert find_file(tmp_path, "lines", 300) == tmp_path / "lines_300.jsonl"
    assert find_file(tmp_path / "own.jsonl", "lines", 200) == tmp_path / "own.jsonl"
    assert cases("lines", 200, str(tmp_path))["test"][0]["expected"] == ["5"]
    with pytest.raises(ValueError, match="data must be given"):
        cases("lines", 200)


def test_the_harness_scores_answers(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness logs and scores the answers of a model with random output."""
    monkeypatch.chdir(tmp_path)
    search_tasks_in(tmp_path, monkeypatch)
    entries = [{"prompt": f"line a is <{i}>. " * i, "expected_number": i} for i in range(1, 5)]
    (tmp_path / "lines_200.jsonl").write_text("\n".join(map(json.dumps, entries)))
    command = ["--model", "ntk_alibi", "--tasks", "longeval_lines_200", "--metadata", "data=."]
    command += ["--model_args", f"pretrained={tiny_checkpoint},method=ntk:4", "--batch_size", "2"]
    main([*command, "--log_samples", "--output_path", "out"])
    (results,) = Path("out").rglob("results*.json")
    stored = json.loads(results.read_text())
    (logged,) = Path("out").rglob("samples_longeval_lines_200*.jsonl")
    samples = [json.loads(line) for line in logged.read_text().splitlines()]
    right = [
        longeval_files.score_answer(sample["doc"], sample["resps"][0])["accuracy"]
        for sample in samples
    ]
    assert [sample["accuracy"] for sample in samples] == right
    assert stored["results"]["longeval_lines_200"]["accuracy,none"] == sum(right) / 4
    assert all(sample["resps"][0][0] for sample in samples)
    assert stored["config"]["method"] == "ntk:4"

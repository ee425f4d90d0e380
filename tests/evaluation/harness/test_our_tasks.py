"""Keys of metadata: what our tasks read, and what no task reads."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import yaml

from ntk_alibi.evaluation.comparing import task_comparison
from ntk_alibi.evaluation.harness import datasets, local_files, our_tasks, run

LINES = ["ntk_alibi_lines"]


def parameters(function: Any) -> set[str]:
    found = inspect.signature(function).parameters.values()
    return {p.name for p in found if p.kind is p.POSITIONAL_OR_KEYWORD} - {"kind", "size", "name"}


@pytest.mark.parametrize("task", our_tasks.names())
def test_the_keys_of_a_task_are_those_that_its_function_reads(task: str) -> None:
    retrieval, prose = parameters(datasets.retrieval), parameters(datasets.prose)
    expected = parameters(local_files.cases)
    assert expected == parameters(local_files.documents)
    if task.startswith("ntk_alibi"):
        expected = retrieval - {"questions"} if task.endswith("_generated") else retrieval
    if task.startswith("ntk_alibi_prose"):
        expected = prose - {"stride"} if task.endswith("sliding") else prose
    assert set(our_tasks.keys_of(task) or ()) == expected


def test_tags_are_those_of_the_tasks() -> None:
    texts = [path.read_text().replace("!function ", "") for path in our_tasks.folder().glob("_*")]
    assert {yaml.safe_load(text)["tag"] for text in texts} == set(our_tasks._TAGS)


@pytest.mark.parametrize(
    ("tasks", "given", "message"),
    [
        (LINES, {"length": [512]}, "got 'length': did you mean lengths?"),
        (LINES, {"foo": 1}, "got 'foo'"),
        (LINES, {"windows": 1}, "got 'windows'"),
        (["ntk_alibi_lines_generated"], {"questions": 2}, "got 'questions'"),
        (["ntk_alibi_prose_sliding"], {"stride": 2}, "got 'stride'"),
        (["longeval_lines_200"], {"dat": "x"}, "got 'dat': did you mean data?"),
        (["longeval"], {"dat": "x"}, "got 'dat': did you mean data?"),
        (["ntk_alibi_l*"], {"record": 1}, "got 'record': did you mean records?"),
    ],
)
def test_keys_that_no_task_reads_are_refused(
    tasks: list[str], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match="metadata of these tasks must have keys of") as error:
        our_tasks.check_metadata(tasks, given)
    assert message in str(error.value)
    with pytest.raises(ValueError, match="metadata of these tasks must have keys of"):
        task_comparison.load_known(tasks, given, "nano-bloom")
    words = [f"{key}={value}" for key, value in given.items()]
    with pytest.raises(ValueError, match="metadata of these tasks must have keys of"):
        run.main(["--model", "ntk_alibi", "--tasks", ",".join(tasks), "--metadata", *words])


@pytest.mark.parametrize(
    ("tasks", "given"),
    [
        (LINES, {"tokenizer": "x", "pretrained": "y", "seed": 1}),
        ([*LINES, "ntk_alibi_prose"], {"records": 1, "windows": 2}),
        (["niah_single_1"], {"max_seq_lengths": [512], "x": 1}),
        ([*LINES, "niah_single_1"], {"max_seq_lengths": [512], "lengths": [512]}),
        (["a-file.yaml"], {"x": 1}),
        ([], {"x": 1}),
    ],
)
def test_other_keys_are_taken(tasks: list[str], given: dict[str, Any]) -> None:
    our_tasks.check_metadata(tasks, given)


def test_the_command_of_a_row_has_the_keys_of_its_task() -> None:
    given = {"records": 1, "windows": 2, "tokenizer": "x"}
    assert our_tasks.metadata_of("ntk_alibi_lines", given) == {"records": 1, "tokenizer": "x"}
    assert our_tasks.metadata_of("niah_single_1", given) == given

"""Checks of case files, names of tasks, process counts, batch sizes and prompts."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from ntk_alibi import _checks


def some_cases(path: Any, cases: Collection[Any]) -> None:
    """Check that a file of cases is not empty."""
    if not cases:
        raise ValueError(f"{path} must hold at least one case, got none")


def enough_documents(task: str, documents: int, processes: int) -> None:
    """Check that a task has a document for each process."""
    if documents < processes:
        raise ValueError(
            f"{task} must have a document for each of the {processes} processes, got {documents}"
        )


def known_tasks(names: Collection[str], known: Collection[str]) -> None:
    """Check the names of tasks; the harness also takes paths of YAML files."""
    if unknown := [name for name in names if name not in known and not os.path.isfile(name)]:
        raise ValueError(
            "tasks must be names that `ntk-alibi lm-eval ls tasks` lists, separated by spaces, got "
            f"{', '.join(map(repr, unknown))}"
        )


def batch_size(value: Any, max_length: int | None) -> None:
    """Check a batch size in the forms that the harness takes: 4, "4", "auto" and "auto:2"."""
    if str(value).startswith("auto"):
        if max_length is None:
            _checks.missing("max_length", "with batch_size=auto, which tests batches of it")
        return
    number = int(value) if str(value).lstrip("-").isdecimal() else value
    _checks.integer("batch_size", number, minimum=1)


def unchanged_prompt(prompt: Any, text: str) -> None:
    """Check that the harness has added nothing to the text of a record."""
    if prompt != text:
        raise ValueError(
            "num_fewshot, system_instruction and apply_chat_template must not be given for tasks "
            "with questions at positions of a text, got a prompt of "
            f"{len(prompt)} characters for a text of {len(text)}"
        )

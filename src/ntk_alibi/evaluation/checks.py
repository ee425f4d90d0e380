"""Checks of tasks, methods and prompts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


def some_cases(path: Any, cases: Collection[Any]) -> None:
    """That a file holds any."""
    if not cases:
        raise ValueError(f"{path} must hold at least one case, is empty")


def enough_documents(task: str, documents: int, processes: int) -> None:
    """That each of some processes has something to do."""
    if documents < processes:
        raise ValueError(
            f"{task} must have a document for each of the {processes} processes, got {documents}"
        )


def unchanged_prompt(prompt: Any, text: str) -> None:
    """That a record reaches the model as it is."""
    if prompt != text:
        raise ValueError(
            "num_fewshot, system_instruction and apply_chat_template must not be given for tasks "
            f"that ask about places in a text, got a prompt of {len(prompt)} characters for a text "
            f"of {len(text)}"
        )


def method_number(name: str, kind: str, number: str, kinds: Collection[str]) -> float:
    """The number in a method's name, "ntk:4"."""
    try:
        if kind in kinds:
            return float(number)
    except ValueError:
        pass
    known = ", ".join(f"{kind}:NUMBER" for kind in kinds)
    raise ValueError(f"method must be original or one of {known}, got {name!r}")

"""Checks of studies, case files, names of tasks, metadata, process counts, batches and prompts."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

from ntk_alibi import _checks, _files, _misspelt
from ntk_alibi.models import checks as model_checks

#: Tokens of one text, which takes about 100 bytes for each while it is made, and of all texts of a
#: task together, which take about 30 bytes for each: 4 GB for so many.
LONGEST_TEXT, MOST_TOKENS = 2**22, 2**27


def text_lengths(
    name: str, lengths: Iterable[Any], texts: int, *, of: str = "records", minimum: int = 1
) -> list[int]:
    """Return lengths in tokens, with so many texts of each, if all fit into memory.

    Args:
        name: name of the argument with the lengths.
        lengths: the lengths.
        texts: number of texts of each length.
        of: name of the argument with the number of texts.
        minimum: least length.
    """
    numbers = [
        _checks.integer(name, length, minimum=minimum, maximum=LONGEST_TEXT) for length in lengths
    ]
    if (tokens := texts * sum(numbers)) > MOST_TOKENS:
        raise ValueError(
            f"{of} must have at most {MOST_TOKENS} tokens in all lengths together, got {texts} of "
            f"each length: {tokens} tokens"
        )
    return numbers


def study(model: Any, tokenizer: Any, folder: Any) -> None:
    """Check a model, its tokenizer and the folder of answers before any work."""
    for method in ("named_parameters", "get_output_embeddings"):
        if isinstance(model, type) or not callable(getattr(model, method, None)):
            raise TypeError(
                "model must be a BLOOM, MPT or Falcon of transformers, got "
                f"{model_checks.briefly(model)}"
            )
    model_checks.tokenizer(tokenizer)
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"path must be a folder, got {folder!r}")
    with _files.naming("path", "a folder that can be written"):
        _files.writable_folder(folder)


def of_kind(name: str, value: Any, attributes: Collection[str], expected: str) -> None:
    """Check that a setting has what is read of it, such as those of a plan."""
    if isinstance(value, type) or not all(hasattr(value, key) for key in attributes):
        raise TypeError(f"{name} must be {expected}, got {model_checks.briefly(value)}")


def known_metadata(given: Iterable[str], known: Collection[str]) -> None:
    """Check the keys of metadata of tasks that read no others."""
    for key in given:
        if key not in known:
            raise ValueError(
                f"metadata of these tasks must have keys of {', '.join(known)}, got {key!r}"
                f"{_misspelt.question(key, known)}"
            )


def spelling(name: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse names that are nearly known; transformers takes others, or refuses them itself."""
    for key in given:
        if meant := _misspelt.question(key, known):
            raise ValueError(f"{name} must have known names, got {key!r}{meant}")


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

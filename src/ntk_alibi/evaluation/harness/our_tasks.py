"""Our tasks: their folder, their names, and the keys of metadata that they read.

The harness passes all keys to all tasks.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ntk_alibi import _checks

#: Keys that say which tokenizer the records are made with.
OF_MODELS = ("tokenizer", "pretrained")

_OF_PROSE = ("lengths", "windows", "bins", "text", "context", "stride", "split")
_OF_GENERATED = ("lengths", "records", "seed", "split")
_OF_RECORDS = (*_OF_GENERATED, "questions")

#: Tags that stand for several of our tasks.
_TAGS = ("ntk_alibi_retrieval", "ntk_alibi_generated", "longeval")


def folder() -> Path:
    """Return the folder of our tasks' YAML files, for the harness's `--include_path`."""
    return Path(str(resources.files("ntk_alibi.evaluation.harness") / "tasks"))


def names() -> list[str]:
    """Return the names of our tasks."""
    return sorted(path.stem for path in folder().glob("*.yaml"))


def keys_of(task: str) -> tuple[str, ...] | None:
    """Return the keys that a task of ours reads; None for other tasks."""
    if task not in (*names(), *_TAGS):
        return None
    if task.startswith("ntk_alibi_prose"):
        return tuple(k for k in _OF_PROSE if k != "stride" or not task.endswith("_sliding"))
    if task.startswith("ntk_alibi_"):
        return _OF_GENERATED if task.endswith("_generated") else _OF_RECORDS
    return ("data",)


def metadata_of(task: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of metadata that a task reads; all of it for a task that is not ours."""
    keys = keys_of(task)
    return {k: v for k, v in metadata.items() if keys is None or k in (*keys, *OF_MODELS)}


def check_metadata(tasks: Collection[str], metadata: Mapping[str, Any]) -> None:
    """Check before any work that all keys are read by one of the tasks, if all tasks are ours.

    Raises:
        ValueError: a key is not.
    """
    ours = (*names(), *_TAGS)
    named = [name for task in tasks for name in fnmatch.filter(ours, task) or [task]]
    keys = [keys_of(name) for name in named]
    if keys and None not in keys:
        known = [*dict.fromkeys(key for of_task in keys for key in of_task or ()), *OF_MODELS]
        for key in metadata:
            if key not in known:
                raise ValueError(
                    f"metadata of these tasks must have keys of {', '.join(known)}, got {key!r}"
                    f"{_checks.question(key, known)}"
                )

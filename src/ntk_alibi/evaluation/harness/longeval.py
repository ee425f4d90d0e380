"""LongEval's published files as data sets of the harness, and their scores."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ntk_alibi import _checks
from ntk_alibi.evaluation import checks
from ntk_alibi.evaluation.scoring import score_lines, score_topics

KINDS = ("lines", "topics")


def cases(kind: str, size: int, data: str | None = None, **_: Any) -> dict[str, Any]:
    """Read the cases of a file into the form in which the harness takes a data set.

    Args:
        kind: "lines" or "topics".
        size: size of a record in lines or topics.
        data: path of the file, or of a folder that holds it either as lines_200.jsonl or, as in
            LongEval's repository, as lines/testcases/200_lines.jsonl.
    """
    from datasets import Dataset

    if data is None:
        _checks.missing("data", f"(LongEval's file of {kind}, or its folder: --metadata data=…)")
    return {"test": Dataset.from_list(read_cases(find_file(data, kind, size), kind))}


def right(document: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Score the answer to a document by the rules of scoring.py."""
    return {"accuracy": float(is_right(document, results[0]))}


def is_right(case: dict[str, Any], prediction: str) -> bool:
    """Return whether a prediction is right for a case, by the rules of scoring.py."""
    if case["kind"] == "lines":
        return score_lines(prediction, int(case["expected"][0]))
    return score_topics(prediction, case["expected"])


def find_file(data: str | os.PathLike[str], kind: str, size: int) -> Path:
    """Return the path of the file with the cases of a kind and size."""
    path = Path(data)
    if not path.is_dir():
        return path
    places = [path / f"{kind}_{size}.jsonl", path / kind / "testcases" / f"{size}_{kind}.jsonl"]
    return next((place for place in places if place.exists()), places[0])


def read_cases(path: str | os.PathLike[str], kind: str) -> list[dict[str, Any]]:
    """Read the cases of a LongEval file.

    Args:
        path: path of a .jsonl file; its entries have the keys prompt and expected_number (lines),
            or prompt and topics (topics).
        kind: "lines" or "topics".

    Returns:
        For each case a dictionary with kind, number (of the line in the file, from 1), prompt and
        expected: a list of the expected number alone, or of all topics with the right one first.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: a line is malformed (the message names file and line), the file is empty, or
            kind is unknown.
    """
    _checks.choice("kind", kind, KINDS)
    read = []
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                read.append({"kind": kind, "number": number, **_parse(line, kind)})
            except (ValueError, KeyError, TypeError) as error:
                reason = f"key {error} is missing" if isinstance(error, KeyError) else error
                raise ValueError(
                    f"{path}, line {number}: no case of longeval-{kind}: {reason}"
                ) from None
    checks.some_cases(path, read)
    return read


def _parse(line: bytes, kind: str) -> dict[str, Any]:
    entry = json.loads(line.decode("utf-8"))
    if not isinstance(entry, dict):
        raise TypeError(f"expected an object, got {line[:40]!r}")
    prompt = entry["prompt"]
    expected: Any = entry["expected_number"] if kind == "lines" else entry["topics"]
    if not isinstance(prompt, str):
        raise TypeError(f"prompt must be a string, got {prompt!r}")
    if kind == "lines":
        return {"prompt": prompt, "expected": [str(int(expected))]}
    if (
        not isinstance(expected, list)
        or not expected
        or not all(isinstance(t, str) for t in expected)
    ):
        raise TypeError(f"topics must be a list of strings, got {expected!r}")
    return {"prompt": prompt, "expected": expected}

"""LongEval's published files as data sets of the harness, and their scores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ntk_alibi import _checks
from ntk_alibi.evaluation.harness.case_file import read_lines, text, texts
from ntk_alibi.evaluation.scoring import score_lines, score_topics

KINDS = ("lines", "topics")

#: Greatest number of a line; LongEval's own have at most five digits.
GREATEST_NUMBER = 10**18


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
    parse = _line if kind == "lines" else _topics
    return [
        {"kind": kind, "number": number, **case}
        for number, case in read_lines(path, f"longeval-{kind}", parse)
    ]


def _line(entry: dict[str, Any]) -> dict[str, Any]:
    expected = entry["expected_number"]
    number = int(expected) if isinstance(expected, str) else expected
    _checks.integer("expected_number", number, minimum=0, maximum=GREATEST_NUMBER)
    return {"prompt": text(entry, "prompt"), "expected": [str(number)]}


def _topics(entry: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": text(entry, "prompt"), "expected": texts(entry, "topics")}

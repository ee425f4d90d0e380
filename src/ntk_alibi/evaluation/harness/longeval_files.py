"""Published files of LongEval as data sets of the harness.

Each line of such a file is a JSON object; errors name the file and the line.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ntk_alibi import _checks, _files
from ntk_alibi.evaluation.scoring import score_lines, score_topics

#: Greatest answer of a line; LongEval's have at most five digits.
GREATEST_NUMBER = 10**18


def cases(kind: str, size: int, data: str | None = None, **_: Any) -> dict[str, Any]:
    """Read a file of LongEval as a data set of the harness.

    Args:
        kind: "lines" or "topics".
        size: size of a record in lines or topics.
        data: path of the file, or of a folder with the file lines_200.jsonl or, as in LongEval's
            repository, lines/testcases/200_lines.jsonl.
    """
    from datasets import Dataset

    if data is None:
        _checks.missing("data", f"(LongEval's file of {kind}, or its folder: --metadata data=…)")
    return {"test": Dataset.from_list(read_cases(find_file(data, kind, size), kind))}


def score_answer(document: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Score the answer to a document by the rules of `ntk_alibi.evaluation.scoring`."""
    prediction, expected = results[0], document["expected"]
    if document["kind"] == "lines":
        return {"accuracy": float(score_lines(prediction, int(expected[0])))}
    return {"accuracy": float(score_topics(prediction, expected))}


def find_file(data: str | os.PathLike[str], kind: str, size: int) -> Path:
    """Return the path of the file with the cases of a kind and size."""
    path = Path(data)
    if not path.is_dir():
        return path
    files = [path / f"{kind}_{size}.jsonl", path / kind / "testcases" / f"{size}_{kind}.jsonl"]
    return next((file for file in files if file.exists()), files[0])


def read_cases(path: str | os.PathLike[str], kind: str) -> list[dict[str, Any]]:
    """Read the cases of a LongEval file.

    Args:
        path: path of a .jsonl file, whose objects have the keys prompt and expected_number (for
            lines) or prompt and topics (for topics).
        kind: "lines" or "topics".

    Returns:
        For each case a dictionary with kind, number (of the line in the file, from 1), prompt and
        expected: a list of the expected number, or of all topics, the right one first.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is malformed, the file is empty, or kind is unknown.
    """
    parse = PARSERS[_checks.choice("kind", kind, PARSERS)]
    read = []
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                read.append({"kind": kind, "number": number, **parse(_entry(line))})
            except (ValueError, KeyError, TypeError) as error:
                reason = f"key {error} is missing" if isinstance(error, KeyError) else error
                raise ValueError(
                    f"{path}, line {number}: no case of longeval-{kind}: {reason}"
                ) from None
    if not read:
        raise ValueError(f"{path} must hold at least one case, got none")
    return read


def _entry(line: bytes) -> dict[str, Any]:
    entry = _files.parse_json(line.decode("utf-8"))
    if not isinstance(entry, dict):
        raise TypeError(f"expected an object, got {line[:40]!r}")
    return entry


def _line_case(entry: dict[str, Any]) -> dict[str, Any]:
    expected = entry["expected_number"]
    number = int(expected) if isinstance(expected, str) else expected
    _checks.integer("expected_number", number, minimum=0, maximum=GREATEST_NUMBER)
    return {"prompt": _text(entry, "prompt"), "expected": [str(number)]}


def _topics_case(entry: dict[str, Any]) -> dict[str, Any]:
    topics = entry["topics"]
    if not isinstance(topics, list) or not topics:
        raise TypeError(f"topics must be a list of strings, got {topics!r}")
    expected = [_text({"topics": topic}, "topics") for topic in topics]
    return {"prompt": _text(entry, "prompt"), "expected": expected}


#: What reads a line of LongEval, by the kind of its cases.
PARSERS = {"lines": _line_case, "topics": _topics_case}


def _text(entry: dict[str, Any], key: str) -> str:
    """Return the text of a key; refuse an empty one."""
    value = entry[key]
    if not isinstance(value, str) or not value:
        raise TypeError(f"{key} must be a string that is not empty, got {value!r}")
    value.encode("utf-8")  # refuses a lone surrogate
    return value

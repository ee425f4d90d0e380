"""Published files of LongEval and LongBench as data sets and tasks of the harness.

Each line of such a file is a JSON object; errors name the file and the line.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval.tasks
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

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
        FileNotFoundError: the file does not exist.
        ValueError: a line is malformed, the file is empty, or kind is unknown.
    """
    _checks.choice("kind", kind, PARSERS)
    return [
        {"kind": kind, "number": number, **case}
        for number, case in read_lines(path, f"longeval-{kind}", PARSERS[kind])
    ]


def _line_case(entry: dict[str, Any]) -> dict[str, Any]:
    expected = entry["expected_number"]
    number = int(expected) if isinstance(expected, str) else expected
    _checks.integer("expected_number", number, minimum=0, maximum=GREATEST_NUMBER)
    return {"prompt": text(entry, "prompt"), "expected": [str(number)]}


def _topics_case(entry: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": text(entry, "prompt"), "expected": texts(entry, "topics")}


#: What reads a line of LongEval, by the kind of its cases.
PARSERS = {"lines": _line_case, "topics": _topics_case}


class LocalTask(ConfigurableTask):  # type: ignore[misc]
    """The harness's task longbench_NAME, with its prompts and metrics, on a local file."""

    def __init__(self, config: dict[str, Any]) -> None:
        name = config["dataset_kwargs"]["name"]
        folder = Path(str(lm_eval.tasks.__file__)).parent / "longbench"
        theirs = load_yaml(folder / f"{name}.yaml", resolve_func=True)
        for key in ("tag", "dataset_path", "dataset_name"):
            theirs.pop(key, None)
        ours = {key: value for key, value in config.items() if key not in ("class", "tag")}
        super().__init__(config={**theirs, **ours, "custom_dataset": documents})


def documents(name: str, data: str | None = None, **_: Any) -> dict[str, Any]:
    """Read a file of LongBench as a data set of the harness.

    Args:
        name: "trec" or "multifieldqa_en".
        data: path of the .jsonl file, or of a folder with the file NAME.jsonl.
    """
    from datasets import Dataset

    if data is None:
        _checks.missing("data", f"(LongBench's {name}.jsonl, or its folder: --metadata data=…)")
    path = Path(data) / f"{name}.jsonl" if Path(data).is_dir() else Path(data)
    read = read_lines(path, f"longbench-{name}", _document, blanks=True)
    return {"test": Dataset.from_list([document for _, document in read])}


def _document(entry: dict[str, Any]) -> dict[str, Any]:
    """Rename the keys of an entry as the prompts of the harness name them."""
    return {
        "context": text(entry, "context"),
        "question": text(entry, "question" if "question" in entry else "input"),
        "answers": texts(entry, "answers"),
        "all_classes": texts(entry, "all_classes") if entry.get("all_classes") else [],
    }


Case = dict[str, Any]


def read_lines(
    path: str | os.PathLike[str], kind: str, parse: Callable[[Case], Case], *, blanks: bool = False
) -> list[tuple[int, Case]]:
    """Read the cases of a file, each with the number of its line, from 1.

    Args:
        path: path of a .jsonl file.
        kind: name of the kind of cases, for errors.
        parse: checks and converts the object of a line.
        blanks: whether blank lines are skipped; otherwise they are errors.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is malformed, or there is none.
    """
    read = []
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if blanks and not line.strip():
                continue
            try:
                read.append((number, parse(_entry(line))))
            except (ValueError, KeyError, TypeError) as error:
                reason = f"key {error} is missing" if isinstance(error, KeyError) else error
                raise ValueError(f"{path}, line {number}: no case of {kind}: {reason}") from None
    if not read:
        raise ValueError(f"{path} must hold at least one case, got none")
    return read


def _entry(line: bytes) -> Case:
    entry = _files.parse_json(line.decode("utf-8"))
    if not isinstance(entry, dict):
        raise TypeError(f"expected an object, got {line[:40]!r}")
    return entry


def text(entry: Case, key: str) -> str:
    """Return the text of a key; refuse an empty one."""
    value = entry[key]
    if not isinstance(value, str) or not value:
        raise TypeError(f"{key} must be a string that is not empty, got {value!r}")
    value.encode("utf-8")  # refuses a lone surrogate
    return value


def texts(entry: Case, key: str) -> list[str]:
    """Return the texts of a key; refuse an empty list."""
    values = entry[key]
    if not isinstance(values, list) or not values:
        raise TypeError(f"{key} must be a list of strings, got {values!r}")
    return [text({key: value}, key) for value in values]

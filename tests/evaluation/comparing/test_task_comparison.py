"""Comparisons on any tasks, and published figures only for the same model, task and method."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ntk_alibi.evaluation.comparing.intervals import accuracy_interval
from ntk_alibi.evaluation.comparing.task_comparison import (
    PUBLISHED,
    compare,
    load_harness_tasks,
    published_percent,
    summarise_samples,
)
from ntk_alibi.evaluation.harness.model import StretchedLM
from ntk_alibi.evaluation.report import tables
from ntk_alibi.methods import parse_method

pytestmark = pytest.mark.slow  # needs the evaluation harness


def test_published_figures_need_the_same_model_task_and_method() -> None:
    assert published_percent("bigscience/bloom-1b7", "longeval_topics_5", "ntk:2") == 96
    assert published_percent("checkpoints/bloom-1b7/", "longbench_trec_local", "ntk:4") == 61.5
    assert published_percent("bigscience/bloom-560m", "longeval_topics_5", "ntk:2") is None
    assert published_percent("bigscience/bloom-1b7", "longeval_topics_10", "ntk:2") is None
    assert published_percent("bigscience/bloom-1b7", "longeval_topics_5", "ntk:4") is None
    assert sum(map(len, PUBLISHED.values())) == 3 + 3 + 2 + 3


def samples(metric: str, values: list[Any]) -> list[dict[str, Any]]:
    return [{metric: value, "metrics": [metric]} for value in values]


def test_a_row_has_the_interval_of_its_kind() -> None:
    row = summarise_samples(samples("accuracy", [1.0, 0.0, 1.0]))
    assert (row["value"], row["cases"]) == (2 / 3, 3)
    assert (row["low"], row["high"]) == accuracy_interval([1, 0, 1], [1, 1, 1])
    row = summarise_samples(samples("accuracy", [[5, 10], [9, 10]]))
    assert (row["value"], row["cases"]) == (0.7, 20)
    assert (row["low"], row["high"]) == accuracy_interval([5, 9], [10, 10])
    row = summarise_samples(samples("score", [0.2, 0.4, 0.6]))
    # The mean's standard error is 0.2 / sqrt(3).
    assert row["high"] - row["value"] == pytest.approx(1.96 * 0.2 / math.sqrt(3), rel=1e-4)
    assert math.isnan(summarise_samples(samples("score", [0.2]))["low"])


def test_compare(tiny_checkpoint: Path, tmp_path: Path) -> None:
    lm = StretchedLM(str(tiny_checkpoint), quiet=True)
    metadata = {"lengths": [300], "records": 2, "windows": 2}
    names = ["ntk_alibi_passkey", "ntk_alibi_prose"]
    found = compare(
        lm,
        [parse_method(name, 64) for name in ("original", "ntk:4")],
        load_harness_tasks(names, metadata, str(tiny_checkpoint)),
        metadata=metadata,
        model="bloom-1b7",
        cache=tmp_path,
    )
    rows = found["rows"].to_dict("records")
    assert [(row["task"], row["method"]) for row in rows] == [
        ("ntk_alibi_passkey", "original"),
        ("ntk_alibi_prose", "original"),
        ("ntk_alibi_passkey", "ntk:4"),
        ("ntk_alibi_prose", "ntk:4"),
    ]
    for row in rows:
        assert row["low"] <= row["value"] <= row["high"]
        assert row["command"].startswith("ntk-alibi lm-eval --model ntk_alibi --model_args")
    assert not hasattr(lm.model.transformer, "_ntk_alibi_patched")


def test_published_figures_have_a_column() -> None:
    row = {"task": "longeval_topics_5", "metric": "accuracy", "cases": 50, "value": 0.5}
    rows = [
        {**row, "method": m, "low": 0.4, "high": 0.6, "published": p}
        for m, p in (("ntk:2", 96), ("ntk:4", None))
    ]
    compared = {"model": "bloom-1b7", "rows": pd.DataFrame(rows)}
    (table,) = tables.comparison_tables(compared)
    assert list(table["published, %"]) == ["96", ""]

"""The study of stretchings on other models: it resumes, refuses, and its tables are right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from studies.stretchings import models, program, reading, tables
from studies.stretchings.models import NanoModel, make_nano_bloom, make_nano_mpt
from studies.stretchings.reading import BASELINE, RULES, ReadingPlan
from transformers import AutoConfig

pytestmark = pytest.mark.slow  # of a program beside the package

SMALL: dict[str, Any] = {
    "start_length": 64, "final_steps": 2, "threshold": -1.0, "tokens": 128, "layers": 1,
    "hidden_size": 32, "heads": 4,
}  # fmt: skip
PLAN = ReadingPlan(
    records=((1, 1), (2, 2), (4, 1)), passkeys=((1, 1), (2, 1), (4, 1)), windows=1, prompts=1
)


def tiny(model: NanoModel, train_length: int = 256) -> NanoModel:
    return replace(model, recipe=replace(model.recipe, train_length=train_length, **SMALL))


def nearer(model: NanoModel) -> NanoModel:
    """Return a model whose multiples beyond the plan are smaller, for speed."""
    return replace(model, farther=tuple((multiple // 8, 1) for multiple, _ in model.farther))


#: Three of the rules, for speed.
FEW = {rule: RULES[rule] for rule in ("original", BASELINE, tables.ENDPOINT_RULE)}


@pytest.fixture(scope="module", autouse=True)
def _few_rules() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (reading, tables):
            patch.setattr(module, "RULES", FEW)
        patch.setattr(reading, "FARTHER_RULES", (BASELINE, tables.ENDPOINT_RULE))
        patch.setattr(tables, "SHOWN", tuple(FEW))
        patch.setattr(tables, "PLANNED", 4)
        yield


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory, _few_rules: None) -> Path:
    folder = tmp_path_factory.mktemp("replication")
    for model in (make_nano_bloom(1), make_nano_mpt(1, 6)):
        program.train_and_read(nearer(tiny(model)), folder, PLAN)
    return folder


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.GROUPS, "seeds", [tiny(make_nano_bloom(1))])
    monkeypatch.setitem(models.GROUPS, "regimes", [tiny(make_nano_mpt(1, 6))])


def test_mpts_have_the_slopes_of_their_regime(output: Path) -> None:
    model = tiny(make_nano_mpt(1, 6))
    config = AutoConfig.from_pretrained(output / model.name)
    assert (config.attn_config.alibi_bias_max, config.max_seq_len) == (6, 256)
    assert (model.regime, make_nano_mpt(1, 5).regime) == (4.0, 16.0)
    assert make_nano_bloom(1).regime == 8.0


def test_every_task_is_read_at_every_multiple(output: Path, groups: None) -> None:
    summary = tables.summarise(output)
    mpt = summary["models"]["regimes"][0]
    assert set(mpt["cells"]) == {"lines", "passkey", "multikey", "other_lines"}
    for task, of_rule in mpt["cells"].items():
        assert set(of_rule) == set(FEW)
        farthest = [] if task == "multikey" else ["4"]
        for rule, cells in of_rule.items():
            farther = ["8", "16"] if task == "lines" and rule != "original" else []
            assert sorted(cells, key=int) == ["1", "2", *farthest, *farther]
    assert set(mpt["prose"]) == set(mpt["generated"]) == set(FEW)
    assert mpt["prose"]["original"] == 0.0


def test_nothing_is_read_twice(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(reading.length_study, "evaluate", fail)
    assert program.train_and_read(tiny(make_nano_bloom(1)), output, PLAN) == []


def test_results_of_another_plan_are_refused(output: Path) -> None:
    with pytest.raises(ValueError, match=r"records-1x\.json holds results of other work"):
        program.train_and_read(tiny(make_nano_bloom(1)), output, replace(PLAN, seed=3))


def test_documents_get_every_section(output: Path, groups: None, tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    marks = "\n".join(f"<!-- {x}: begin -->\n<!-- {x}: end -->" for x in tables.SECTIONS)
    document.write_text(marks)
    summary = tables.summarise(output)
    assert list(tables.tables(summary)) == list(tables.SECTIONS)
    arguments = ["--output", str(output), "--document", str(document), "--groups"]
    program.main(arguments)
    text = document.read_text()
    assert text.count(f"| {BASELINE} |") >= 4
    farther = text.partition("<!-- farther: begin -->\n")[2].partition("<!-- farther: end -->")[0]
    assert farther.startswith("| lines | 8x | 16x |")
    assert "original" not in farther
    assert "nano BLOOM | 1 |" in text
    assert json.loads((tmp_path / "pictures/replication.json").read_text()) == summary
    assert (tmp_path / "pictures/stretching-lines.png").stat().st_size > 10_000


def of_seed(seed: int, base: float, other: float) -> dict[str, Any]:
    cells = {BASELINE: base, tables.ENDPOINT_RULE: other}
    lines = {rule: {"4": {"share": x, "beyond": x / 2}} for rule, x in cells.items()}
    return {"seed": seed, "regime": 8.0, "train_length": 2048, "cells": {"lines": lines},
            "prose": {}, "generated": {}}  # fmt: skip


def test_the_endpoint_is_a_paired_t_test_over_models() -> None:
    found = [of_seed(s, b, o) for s, b, o in ((1, 0.8, 0.9), (2, 0.6, 0.8), (3, 0.7, 0.76))]
    row = tables.tables({"machine": "", "models": {"seeds": found, "regimes": []}})["endpoint"]
    # gains .05, .1, .03 beyond the training length: mean .06, sd .036056, t = 2.882, p = .1022
    assert "| +6 ± 9 | 0.102 | +5 +10 +3 |" in row


def test_records_of_models_differ_and_their_prose_is_unseen() -> None:
    first, second = (reading.plans(tiny(make_nano_bloom(s)), PLAN) for s in (1, 2))
    assert first["records-2x"].seed != second["records-2x"].seed
    assert all(plan.split == "held-out-books" for plan in first.values())
    assert make_nano_bloom(1).recipe.held_out == make_nano_mpt(1, 8).recipe.held_out == "books"

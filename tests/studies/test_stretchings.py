"""The study of stretchings in held-out forms: it resumes, refuses, and its tables are right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from studies.forms import FRESH, HELD_OUT, NEW
from studies.stretchings import models, program, reading, tables
from studies.stretchings.models import NanoMPTRecipe
from studies.stretchings.reading import KINDS, RULES, ReadingPlan
from transformers import AutoConfig

pytestmark = pytest.mark.slow  # of a program beside the package

TINY = NanoMPTRecipe(
    train_length=256, start_length=64, final_steps=2, threshold=-1.0, tokens=128, layers=1,
    hidden_size=32, heads=4, seed=1,
)  # fmt: skip
PLAN = ReadingPlan(records=((1, 1), (4, 4)), windows=1)

#: Three of the rules, for speed.
FEW = {rule: RULES[rule] for rule in ("original", "dynamic-ntk", "dynamic-flat")}


@pytest.fixture(scope="module", autouse=True)
def _few_rules() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (reading, tables):
            patch.setattr(module, "RULES", FEW)
        patch.setattr(tables, "SHOWN", tuple(FEW))
        for module in (program, tables):
            patch.setattr(module, "recipes", lambda size: [TINY] if size == "small" else [])
        yield


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory, _few_rules: None) -> Path:
    folder = tmp_path_factory.mktemp("stretchings")
    program.train_and_read(TINY, folder, PLAN)
    return folder


def test_the_regime_is_that_of_bloom(output: Path) -> None:
    config = AutoConfig.from_pretrained(output / TINY.name)
    assert (config.attn_config.alibi_bias_max, config.max_seq_len) == (6, 256)
    assert {r.train_length * 2.0**-r.alibi_bias_max for r in models.recipes("large")} == {8.0}


def test_every_form_is_read_by_every_rule(output: Path) -> None:
    summary = tables.summarise(output)
    (model,) = summary["models"]["small"]
    assert set(model["shares"]) == {*HELD_OUT, "records", *FRESH, "fresh", *NEW, "new"}
    for of_rule in model["shares"].values():
        assert set(of_rule) == set(FEW)
        for cells in of_rule.values():
            assert set(cells) == {"1", "4"}
            assert cells["1"]["far"] is None
            assert 0.0 <= cells["4"]["far"] <= 1.0
    assert set(model["prose"]) == set(FEW)
    assert model["prose"]["original"] == 0.0


def test_nothing_is_read_twice(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "load", None)
    assert program.train_and_read(TINY, output, PLAN) == []


def test_results_of_another_plan_are_refused(output: Path) -> None:
    with pytest.raises(ValueError, match=r"records-1x\.json holds results of other work"):
        program.train_and_read(TINY, output, replace(PLAN, seed=3))


def test_documents_get_every_section(output: Path, tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    marks = "\n".join(f"<!-- {x}: begin -->\n<!-- {x}: end -->" for x in tables.SECTIONS)
    document.write_text(marks)
    summary = tables.summarise(output)
    assert list(tables.tables(summary)) == list(tables.SECTIONS)
    program.main(["--output", str(output), "--document", str(document), "--sizes"])
    text = document.read_text()
    assert text.count("| dynamic-flat |") == 3
    assert text.count("| dynamic-ntk over original | 1 |") == 4
    assert json.loads((tmp_path / "pictures/stretching-forms.json").read_text()) == summary
    assert (tmp_path / "pictures/stretching-forms.png").stat().st_size > 10_000


def of_seed(seed: int, parameters: int, **far: float) -> dict[str, Any]:
    cells = {rule.replace("_", "-"): {"4": {"all": x, "far": x}} for rule, x in far.items()}
    return {"seed": seed, "parameters": parameters, "prose": {},
            "shares": dict.fromkeys((*HELD_OUT, *FRESH, *NEW, *KINDS), cells)}  # fmt: skip


def test_the_endpoint_is_a_paired_t_test_over_models_of_a_size() -> None:
    small = [
        of_seed(1, 250_000, original=0.8, dynamic_flat=0.8, dynamic_ntk=0.85),
        of_seed(2, 250_000, original=0.6, dynamic_flat=0.6, dynamic_ntk=0.7),
        of_seed(3, 250_000, original=0.7, dynamic_flat=0.7, dynamic_ntk=0.73),
    ]
    large = [of_seed(1, 1_000_000, original=0.5, dynamic_flat=0.6, dynamic_ntk=0.62)]
    summary = {
        "machine": "",
        "train_length": 512,
        "models": {"small": small, "middle": [], "large": large},
    }
    made = tables.tables(summary)
    # gains .05, .1, .03: mean .06, sd .036056, t = 2.882 with 2 degrees of freedom, p = .1022
    for section in ("endpoint", "new"):
        assert "| +6 ± 9 | 0.102 | +5 +10 +3 |" in made[section]
    # from a mean of 6 points at 2^18 to 12 at 2^20 or so
    assert "| dynamic-ntk over original | 4 | +3.0 |" in made["trend"]


def test_models_read_records_of_their_own() -> None:
    assert len({(r.hidden_size, r.seed) for s in models.WIDTHS for r in models.recipes(s)}) == 9
    assert all(recipe.held_out == "books" for recipe in models.recipes("large"))

"""Summary, tables and picture of the study: what qualifies, intervals, paired differences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from studies.schemes import grid, tables
from studies.schemes.readings import views
from studies.schemes.schemes import SCHEMES
from studies.schemes.summary import by_seed, cpu_hours, differences, summarise

pytestmark = pytest.mark.slow  # of a program beside the package

SETTING = {"muon_rate": 0.02, "first_weights_std": 0.06}
PLAN = {"multiples": [1, 4], "records": 2, "windows": 2, "seed": 0}


def recipe(scheme: str, seed: int, setting: dict[str, float], **others: Any) -> dict[str, Any]:
    own = {"scheme": scheme, "seed": seed, "until_learned": False, **setting}
    return {"train_length": 10, **own, **others}


def store(folder: Path, scheme: str, seed: int, measured: dict[str, Any], **others: Any) -> None:
    """Write the results file of a finished model."""
    path = folder / f"{scheme}-{seed}"
    path.mkdir(parents=True)
    training = {"cpu_seconds": 60.0 + seed, "wall_seconds": 70.0, "learned_at": 300 + 100 * seed}
    results = {"recipe": recipe(scheme, seed, SETTING, **others), "plan": PLAN}
    results |= {"training": training, "reading_cpu_seconds": 5.0, "measured": measured}
    path.joinpath("results.json").write_text(json.dumps(results))


def answered(near: float, far: float, nats: float = 3.0) -> dict[str, Any]:
    """Return results with these shares of right answers, within the training length and beyond."""
    right = [i < round(100 * share) for share in (near, far) for i in range(100)]
    return {"right": right, "distances": [5] * 100 + [15] * 100, "nats": [nats - 0.1, nats + 0.1]}


def at_first(share: float) -> dict[str, Any]:
    return answered(share, share) | {"distances": [5] * 200}


def measured(scheme: str, first: float, plain: tuple[float, float], **others: float) -> Any:
    """Return all results of a model: at 4x as given, for readings the share of far answers."""
    every = {key: answered(0.5, 0.5, 3.5) for key in views(SCHEMES[scheme], (1, 4), 10)}
    every |= {"plain/1": at_first(first), "plain/4": answered(*plain, nats=3.25)}
    return every | {f"{reading}/4": answered(0.5, far) for reading, far in others.items()}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Store three seeds of ALiBi, three of RoPE, of which one has not learned, and one of none."""
    for seed, far in enumerate((0.2, 0.4, 0.6)):
        store(tmp_path, "alibi", seed, measured("alibi", 0.96, (1.0, far), ntk=far + 0.1))
    for seed, (first, far) in enumerate([(1.0, 0.5), (0.94, 1.0), (0.95, 0.7)]):
        store(tmp_path, "rope", seed, measured("rope", first, (1.0, far)))
    store(tmp_path, "none", 0, measured("none", 0.07, (0.0, 0.0)))
    return tmp_path


def row(text: str, name: str) -> list[str]:
    """Return the cells of a row of a table."""
    found = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in found[0].split("|")[2:-1]]


def test_only_runs_that_reach_95_percent_count_beyond_the_training_length(study: Path) -> None:
    summary = summarise(study)
    assert summary["training"]["rope"]["qualifies"] == [True, False, True]
    assert by_seed(summary, "rope/plain", "beyond", 4) == {0: 0.5, 2: 0.7}
    assert by_seed(summary, "rope/plain", "beyond", 4, every=True) == {0: 0.5, 1: 1.0, 2: 0.7}
    shown = tables.tables(summary)
    assert row(shown["beyond"], "RoPE") == ["2 of 3", "60 (0–100)"]
    # all runs at the training length: 100, 94 and 95 %
    assert row(shown["pairs"], "RoPE")[:2] == ["2 of 3", "96 (88–100)"]
    assert row(shown["pairs"], "RoPE")[-1] == "75 / 85"
    for name in ("beyond", "endpoint"):
        assert row(shown[name], "none")[0] == "0 of 1: none at 95 %"
    assert "none/window" in summary["measured"]
    for name in ("readings", "endpoint"):
        assert "none + window" not in shown[name]
    assert row(shown["beyond"], "none")[1:] == [""]
    assert row(shown["pairs"], "none")[1:] == ["7", "", ""]
    assert row(shown["prose"], "none")[1:] == ["3.00", ""]


def test_intervals_are_students_and_shares_end_at_0_and_100(study: Path) -> None:
    shown = tables.tables(summarise(study))
    # standard deviation 20 of 3 values: 4.303 * 20 / sqrt(3) = 49.7
    assert row(shown["beyond"], "ALiBi") == ["3 of 3", "40 (0–90)"]
    assert row(shown["prose"], "ALiBi") == ["3 of 3", "3.00", "+0.250"]
    assert row(shown["readings"], "ALiBi + ntk:4") == ["3 of 3", "50 (25–75)", "+0.000"]
    # steps 300, 400 and 500
    assert row(shown["learning"], "ALiBi")[2:6] == [
        "3 of 3", "400 ± 248", "300 / 400 / 500", "96",
    ]  # fmt: skip


def test_the_endpoint_is_compared_with_alibi_seed_by_seed(study: Path) -> None:
    summary = summarise(study)
    assert differences(summary, "rope/plain") == pytest.approx({0: 0.3, 2: 0.1})
    assert differences(summary, "alibi/ntk") == pytest.approx({0: 0.1, 1: 0.1, 2: 0.1})
    text = tables.tables(summary)["endpoint"]
    # 12.706 * 14.1 / sqrt(2) = 127 points
    assert row(text, "RoPE") == [
        "2 of 3", "2", "60 (0–100)", "40 (0–100)", "+20 ± 127", "+30 / +10",
    ]  # fmt: skip
    assert row(text, "ALiBi + ntk:4") == [
        "3 of 3", "3", "50 (0–100)", "40 (0–90)", "+10", "+10 / +10 / +10",
    ]  # fmt: skip
    assert row(text, "none") == ["0 of 1: none at 95 %", "0", "", "", "", ""]
    assert not [line for line in text.splitlines() if line.startswith("| ALiBi |")]


def store_grid(folder: Path, scheme: str, steps: dict[int, int | None]) -> None:
    """Write the outcomes of a scheme's runs: steps to learn with each setting of the grid."""
    for i, setting in enumerate(grid.SETTINGS):
        for seed in grid.GRID_SEEDS:
            own = vars(setting) | {"until_learned": True}
            path = folder / f"grid/{scheme}-{i}-{seed}"
            path.mkdir(parents=True)
            outcome = {"recipe": recipe(scheme, seed, own), "plan": PLAN, "steps": 900}
            outcome |= {"learned_at": steps.get(i), "loss": 1.0 + i, "cpu_seconds": 36.0}
            path.joinpath("outcome.json").write_text(json.dumps(outcome))


def test_the_grid_shows_its_runs_and_the_choice(study: Path) -> None:
    store_grid(study, "alibi", {1: 500, 3: 600})
    store_grid(study, "fox", {})
    summary = summarise(study)
    assert summary["setting"]["alibi"] == SETTING == vars(grid.SETTINGS[1])
    shown = tables.tables(summary)["grid"]
    assert row(shown, "ALiBi") == [
        "0 of 1, loss 1.00", "**1 of 1, 500 steps**", "0 of 1, loss 3.00", "1 of 1, 600 steps",
    ]  # fmt: skip
    assert row(shown, "FoX")[0] == "**0 of 1, loss 1.00**"
    hours = cpu_hours(summary)
    assert hours["grid"] == pytest.approx(8 * 36 / 3600)
    assert hours["trainings"] == pytest.approx((61 * 3 * 2 + 60) / 3600)
    assert hours["readings"] == pytest.approx(7 * 5 / 3600)
    assert f"; {sum(hours.values()):.2f} together." in tables.tables(summary)["training"]


def test_a_model_must_have_the_setting_that_its_grid_chose(study: Path) -> None:
    store_grid(study, "alibi", {3: 600})
    with pytest.raises(ValueError, match=r"alibi-0.*must have the setting .*0.04.* got .*0.02"):
        summarise(study)


def test_models_of_different_recipes_are_not_mixed(study: Path, tmp_path: Path) -> None:
    store(study, "rope", 3, measured("rope", 1.0, (1.0, 1.0)), train_length=20)
    with pytest.raises(ValueError, match=r"rope-3.*another recipe or plan"):
        summarise(study)
    with pytest.raises(ValueError, match="has none"):
        summarise(tmp_path / "nothing")


def test_a_grid_that_is_not_finished_chooses_nothing(study: Path) -> None:
    store_grid(study, "alibi", {3: 600})
    next(study.glob("grid/alibi-0-*/outcome.json")).unlink()
    assert summarise(study)["grid"] == {}


def test_models_that_are_still_at_work_do_not_count(study: Path) -> None:
    before = summarise(study)
    store(study, "rope", 3, {"plain/1": at_first(1.0)})
    store(study, "fox", 0, {"plain/1": at_first(1.0)})
    after = summarise(study)
    assert after["measured"] == before["measured"]
    assert after["training"] == before["training"]
    assert "7 of 60 trainings" in tables.tables(after)["status"]

"""The search for a factor: its criteria, its certainty, and its choice on nano BLOOM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ntk_alibi as na
from ntk_alibi import _files
from ntk_alibi.evaluation.comparing import tuning
from ntk_alibi.evaluation.comparing.candidates import families, refinements
from ntk_alibi.evaluation.comparing.intervals import accuracy_entry, half_width, paired_difference
from ntk_alibi.methods import parse_method
from ntk_alibi.models import load

pytestmark = pytest.mark.slow  # needs the evaluation harness

ALL = np.arange(8)


def right(*accuracies: float) -> tuning.Floats:
    """Make records of ten questions of which each method answers about the given share."""
    noise = np.array([0, 1, 0, -1, 0, 1, 0, -1])
    counts = np.array([np.clip(10 * a + noise, 0, 10) for a in accuracies])
    return np.stack([counts, np.full_like(counts, 10)], axis=-1)


def test_retrieval_decides() -> None:
    nats = np.array([[2.0], [2.1], [2.2]])
    assert tuning.choose(right(0.2, 0.5, 0.9), nats, ALL) == 2


def test_perplexity_decides_where_retrieval_is_equal() -> None:
    nats = np.array([[2.0, 2.0], [2.2, 2.2], [2.1, 2.1]])
    assert tuning.choose(right(0.2, 0.9, 0.9), nats, ALL) == 2


def test_the_shares_of_choices_show_how_sure_the_choice_is() -> None:
    nats = np.array([[2.0], [2.1]])
    assert tuning.choice_shares(right(0.2, 0.9), nats, 0) == [0.0, 1.0]
    rng = np.random.default_rng(0)
    close = np.stack([rng.binomial(10, 0.5, (2, 8)), np.full((2, 8), 10)], axis=-1).astype(float)
    shares = tuning.choice_shares(close, np.array([[2.0], [2.0]]), 0)
    assert sum(shares) == pytest.approx(1)
    assert max(shares) < 1


def test_candidates_follow_the_length() -> None:
    search = tuning.Search(8192, 2048)
    assert search.candidates[0] == "original"
    assert {"ntk:4", "ntk:8", "flat:8", "knee:1024:28", "interpolation:4"} <= set(search.candidates)
    assert not any(name.endswith(":1") for name in tuning.Search(512, 2048).candidates)
    for length in (512, 8192, 100_000):
        names = tuning.Search(length, 2048).candidates
        assert len(set(names)) == len(names)
        assert [parse_method(name, 2048).name for name in names] == list(names)
    assert tuning.Search(8192, 2048, ("ntk:3", "original")).candidates == ("original", "ntk:3")


@pytest.mark.parametrize("layers", [1, 2, 3, 24])
def test_refinements_are_methods_near_the_method(layers: int) -> None:
    for name in (*tuning.Search(8192, 2048).candidates, "flat:8:0.5:layers=0"):
        near = refinements(name, layers)
        assert name not in near
        assert len(set(near)) == len(near)
        if "layers" in name:
            continue
        for other in near:
            scaling: Any = parse_method(other, 2048).scaling
            assert scaling is None or max(scaling.layers or (0,)) < layers


def test_searches_with_other_seeds_share_no_records() -> None:
    plans = [
        tuning.Search(4096, 2048, seed=seed).plan(("original",), held_out=held_out)
        for seed in range(9)
        for held_out in (False, True)
    ]
    assert len({plan.seed for plan in plans}) == len(plans)
    assert {plan.split for plan in plans if plan.seed % 2} == {"held-out"}


def test_nano_bloom_is_stretched_where_it_forgets(tmp_path: Path) -> None:
    """At three times the training length ntk:4 answers nearly all questions, the original few."""
    model, tokenizer, length = load()
    wanted = tuning.Search(3 * length, length, ("ntk:4", "interpolation:4"), records=4, windows=2)
    found = tuning.search(model, tokenizer, wanted, tmp_path, quiet=True)
    assert found.chosen == found.answer == "ntk:4"
    assert found.sure > 0.9
    fresh = found.fresh.set_index("method")
    assert fresh["low"]["ntk:4"] > fresh["high"]["original"]
    assert found.candidates["best_share"].sum() == pytest.approx(1)
    assert found.candidates["difference"][0] == 0


def test_the_search_beats_ntk_on_nano_bloom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search of a quarter of the families and two refinements."""
    model, tokenizer, length = load()
    some = families(2 * length, length)[:4]
    monkeypatch.setattr(tuning, "families", lambda *_: some)
    wanted = tuning.Search(2 * length, length, records=4, windows=2, budget=6)
    found = tuning.search(model, tokenizer, wanted, tmp_path, quiet=True)
    tried = list(found.trace["method"])
    assert tried[0] == "original"
    assert len(set(tried)) <= wanted.tries
    assert "refinements" in set(found.trace["stage"])
    method = parse_method(found.answer, length)
    assert found.answer == found.chosen
    assert na.scaling_from_config(found.config["alibi_scaling"]) == method.scaling
    assert found.paired["against"][0] == "original"
    assert found.paired["gain"][0] > 0.3
    again = tuning.search(model, tokenizer, wanted, tmp_path, quiet=True)
    assert _files.json_text(vars(again)) == _files.json_text(vars(found))


def test_intervals_of_means_are_students() -> None:
    # t(0.975) is 12.7062 for 1 degree of freedom and 2.7764 for 4
    assert half_width([0.0, 2.0]) == pytest.approx(12.7062, rel=1e-5)
    assert half_width(np.arange(5.0)) == pytest.approx(2.7764 * np.sqrt(2.5 / 5), rel=1e-4)
    assert np.isnan(half_width([1.0]))
    difference, width = paired_difference([8, 9, 7], [6, 8, 6], [10, 10, 10])
    assert difference == pytest.approx(4 / 30)
    assert width == pytest.approx(half_width([0.2, 0.1, 0.1]))
    assert paired_difference([5, 0], [0, 5], [10, 10])[0] == 0.0


@pytest.mark.parametrize("cases", [[10, 10, 10], [5, 10, 20], [10]])
def test_records_that_all_differ_alike_have_no_interval(cases: list[int]) -> None:
    """They have no variance, so that an interval from it would have no width."""
    first, second = ([round(share * n) for n in cases] for share in (0.8, 0.2))
    difference, width = paired_difference(first, second, cases)
    assert difference == pytest.approx(0.6)
    assert np.isnan(width)


@pytest.mark.parametrize("length", [1024, 4096, 8192])
def test_a_small_budget_tries_ntk_first(length: int) -> None:
    tried = tuning.Search(length, 2048, budget=3).candidates
    assert [name.split(":")[0] for name in tried] == ["original", "ntk", "flat"]
    assert tuning.Search(length, 2048, budget=2).candidates == tried[:2]


def test_a_contradicted_choice_is_found() -> None:
    pair = {"method": "flat:2", "against": "original", "gain": 0.5, "gain_half_width": 0.1}
    ntk = pair | {"against": "ntk:2", "gain": -0.2}
    fresh = pd.DataFrame()
    assert tuning.contradicting_methods(fresh, pd.DataFrame([pair, ntk])) == ["ntk:2"]
    unsure = pd.DataFrame([ntk | {"gain_half_width": 0.3}])
    assert tuning.contradicting_methods(fresh, unsure) == []


PAIR = {"method": "ntk:2", "against": "original"}
NOTHING: dict[str, float] = {"gain": 0.0, "gain_half_width": 0.1, "nats": 0.0, "nats_half_width": 0}


@pytest.mark.parametrize(
    ("changes", "better"),
    [
        ({"gain": 0.2}, True),
        ({"gain": 0.05}, False),
        ({"nats": -0.2, "nats_half_width": 0.1}, True),
        ({"nats": -0.2, "nats_half_width": 0.3}, False),
        ({"nats": -0.2, "nats_half_width": np.nan}, False),
        ({"nats": -0.2, "gain": -0.2}, False),  # better in prose, and worse in answers
    ],
)
def test_better_is_what_chance_does_not_explain(changes: dict[str, float], better: bool) -> None:
    pairs = pd.DataFrame([PAIR | {"against": "ntk:4", "gain": 1.0}, PAIR | NOTHING | changes])
    assert tuning.is_better(pd.DataFrame(), pairs) == better


@pytest.mark.parametrize(("right", "better"), [(9, True), (1, False)])
def test_records_that_all_agree_are_judged_by_the_accuracies(right: int, better: bool) -> None:
    pairs = pd.DataFrame([PAIR | NOTHING | {"gain": right / 10, "gain_half_width": np.nan}])
    counts = {"ntk:2": [right] * 4, "original": [0] * 4}
    fresh = pd.DataFrame(
        {"method": name, **accuracy_entry(found, [10] * 4)} for name, found in counts.items()
    )
    assert tuning.is_better(fresh, pairs) == better
    turned = pairs.assign(method="original", against="ntk:2", gain=-right / 10)
    assert tuning.contradicting_methods(fresh, turned) == ["ntk:2"] * better

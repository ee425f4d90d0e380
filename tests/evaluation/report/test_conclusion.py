"""The sentence about a study is what its results show, and no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from types import MappingProxyType
from typing import Any

from ntk_alibi.evaluation import Summary
from ntk_alibi.evaluation.report.conclusion import (
    better_method,
    conclusion,
    markdown_to_share,
    unanswered,
)


def study(
    at_one: tuple[int, int, int] = (100, 90, 100),
    shortest: float = 1.0,
    tasks: tuple[str, ...] = ("lines",),
    gains: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    **percents: tuple[int, int, int],
) -> Summary:
    """Return a study at a short length, 1x by default, and 16x; all methods are equal at 1x.

    The first one of several tasks is not answered at all. `gains` has paired gains at 16x, with
    half-widths, of methods that have them.
    """
    entries = []
    for task, (name, found) in product(tasks, percents.items()):
        for multiple, figures in ((shortest, at_one), (16.0, found)):
            unknown = task != tasks[-1]
            figures = (0, 0, 0) if unknown else figures
            of = zip(("accuracy", "low", "high"), figures, strict=True)
            paired = zip(("gain", "gain_half_width"), gains.get(name, ()), strict=False)
            entry = {
                "task": task,
                "method": name.replace("_", ":"),
                "multiple": multiple,
                "cases": 64,
            }
            entries.append(entry | {key: value / 100 for key, value in (*of, *paired)})
    return Summary(2048, [name.replace("_", ":") for name in percents], retrieval=entries)


FOUND = {"original": (50, 40, 60), "ntk_4": (57, 47, 67), "ntk_16": (58, 48, 68)}


def test_the_best_method_is_named_where_its_paired_gain_is_beyond_chance() -> None:
    """Intervals of both accuracies overlap: the same records are hard for both."""
    summary = study(gains={"ntk_16": (8, 7), "ntk_4": (7, 1)}, **FOUND)
    assert better_method(summary) == "ntk:16"
    assert conclusion(summary) == [
        "The best method at 16 training lengths (32768 tokens) is ntk:16: it answers 58 % (48–68) "
        "of the questions about lines, original 50 % (40–60), +8 ± 7 points."
    ]


def test_a_gain_within_its_interval_is_none() -> None:
    summary = study(gains={"ntk_16": (8, 9), "ntk_4": (7, 9)}, **FOUND)
    assert better_method(summary) is None
    assert conclusion(summary) == [
        "No method is better than original beyond chance at 16 training lengths (32768 tokens): "
        "original answers 50 % (40–60) of the questions about lines, ntk:16 58 % (48–68)."
    ]


def test_the_recommended_method_is_named_within_chance_of_the_best() -> None:
    near: dict[str, Any] = {"ntk_4": (97, 90, 100), "dynamic-ntk": (93, 80, 98)}
    gains = {"ntk_4": (77, 9), "dynamic-ntk": (73, 9)}
    assert conclusion(study(gains=gains, original=(20, 15, 25), **near)) == [
        "At 16 training lengths (32768 tokens) no method is better than dynamic-ntk beyond chance: "
        "it answers 93 % (80–98) of the questions about lines, original 20 % (15–25), "
        "+73 ± 9 points; ntk:4 97 % (90–100)."
    ]
    # A gain beyond chance counts more than the name.
    unsure = {"ntk_4": (77, 9), "dynamic-ntk": (73, 75)}
    assert better_method(study(gains=unsure, original=(20, 15, 25), **near)) == "ntk:4"
    near["dynamic-ntk"] = (80, 70, 90)
    assert better_method(study(gains=gains, original=(20, 15, 25), **near)) == "ntk:4"


def test_without_a_paired_interval_both_accuracies_serve() -> None:
    assert better_method(study(**FOUND)) is None
    apart = study(original=(6, 3, 11), ntk_4=(62, 55, 69))
    assert better_method(apart) == "ntk:4"
    assert conclusion(apart)[0].endswith("lines, original 6 % (3–11).")


def test_a_worse_method_is_not_better() -> None:
    assert (
        better_method(study(gains={"ntk_4": (-8, 2)}, original=(50, 40, 60), ntk_4=(42, 32, 52)))
        is None
    )


def test_a_single_method_and_prose_alone_have_no_conclusion() -> None:
    nats = {"method": "original", "begin": 0.0, "end": 1.0, "nats": 2.7}
    prose = Summary(2048, ["original"], perplexity=[nats | {"difference": 0.0, "half_width": 0.0}])
    for summary in (study(original=(6, 3, 11)), prose):
        assert conclusion(summary) == []
        assert better_method(summary) is None


def test_the_conclusion_is_about_a_task_that_the_model_knows() -> None:
    found = {"original": (6, 3, 11), "ntk_4": (62, 55, 69)}
    (sentence,) = conclusion(study(tasks=("lines", "topics"), **found))
    assert "ntk:4: it answers 62 % (55–69) of the questions about topics, original" in sentence


NOTHING = {"original": (0, 0, 5), "ntk_4": (2, 0, 9)}


def test_a_model_that_answers_nothing_does_not_know_the_records() -> None:
    begin = "the model answers 0 % of the questions of these records at "
    assert unanswered(study(at_one=(0, 0, 5), **NOTHING)) == (
        f"{begin}its own training length (2048 tokens)"
    )
    assert unanswered(study(at_one=(0, 0, 5), shortest=0.5, **NOTHING)) == (
        f"{begin}0.5 training lengths (1024 tokens)"
    )
    only_far = study(at_one=(0, 0, 5), shortest=4.0, **NOTHING)
    assert (
        unanswered(only_far)
        == "the model answers 0 % of the questions of these records at 4 or 16 training lengths"
    )


def test_a_model_that_answers_somewhere_knows_them() -> None:
    assert unanswered(study(**NOTHING)) is None
    assert unanswered(study(at_one=(0, 0, 5), original=(0, 0, 5), ntk_4=(40, 30, 50))) is None
    nats = {"method": "original", "begin": 0.0, "end": 1.0, "nats": 2.7}
    rows = [nats | {"difference": 0.0, "half_width": 0.0}]
    assert unanswered(Summary(2048, ["original"], perplexity=rows)) is None


def test_what_is_shared_names_the_model_the_lengths_and_the_intervals() -> None:
    summary = study(original=(50, 40, 60), ntk_4=(57, 47, 67))
    versions = {"versions": {"ntk-alibi": "1.0", "torch": "3.0"}}
    summary = replace(summary, settings=versions)
    assert "\n".join(markdown_to_share(summary, "own/bloom")) == (
        "to share, in Markdown:\n\n"
        "own/bloom, trained at 2048 tokens; ntk-alibi 1.0, torch 3.0\n\n"
        "| method | lines, 2048 tokens | lines, 32768 tokens |\n"
        "| --- | ---: | ---: |\n"
        "| original | 100 % (90–100) | 50 % (40–60) |\n"
        "| ntk:4 | 100 % (90–100) | 57 % (47–67) |\n"
    )


def test_a_cell_that_a_study_lacks_is_empty_where_it_is_shared() -> None:
    summary = study(original=(50, 40, 60), ntk_4=(57, 47, 67))
    of_ntk = summary.retrieval["method"] == "ntk:4"
    lacking = summary.retrieval[~(of_ntk & (summary.retrieval["multiple"] == 1))]
    text = "\n".join(markdown_to_share(replace(summary, retrieval=lacking), "own"))
    assert "| ntk:4 |  | 57 % (47–67) |" in text

"""The sentence about a study is what its results show, and no more."""

from __future__ import annotations

from itertools import product

from ntk_alibi.evaluation import Summary
from ntk_alibi.evaluation.report.conclusion import choice, conclusion, is_better, unanswered
from ntk_alibi.methods import RECOMMENDED

#: How tests write a method that has a hyphen and colons in its name.
FLAT = "dynamic_flat"


def study(
    at_one: tuple[int, int, int] = (100, 90, 100),
    shortest: float = 1.0,
    tasks: tuple[str, ...] = ("lines",),
    **percents: tuple[int, int, int],
) -> Summary:
    """Return a study at a short length, 1x by default, and 16x; all methods are equal at 1x.

    The first one of several tasks is not answered at all.
    """
    names = {name: name.replace("_", ":") for name in percents} | {FLAT: RECOMMENDED}
    entries = []
    for task, (name, found) in product(tasks, percents.items()):
        for multiple, figures in ((shortest, at_one), (16.0, found)):
            shares = zip(("accuracy", "low", "high"), figures, strict=True)
            of = {"task": task, "method": names[name], "multiple": multiple, "cases": 64}
            unknown = task != tasks[-1]
            entries.append(of | {key: 0.0 if unknown else value / 100 for key, value in shares})
    return Summary(2048, [names[name] for name in percents], retrieval=entries)


def test_the_best_of_several_methods_is_named_with_its_interval() -> None:
    summary = study(original=(6, 3, 11), ntk_4=(16, 11, 22), ntk_16=(62, 55, 69))
    assert choice(summary) == "ntk:16"
    assert conclusion(summary) == [
        "At 16 training lengths (32768 tokens) original answers 6 % (3–11) of the questions about "
        "lines; ntk:16, the best of 2 methods, answers 62 % (55–69)."
    ]


def test_a_gain_within_the_intervals_is_none() -> None:
    (sentence,) = conclusion(study(original=(50, 40, 60), ntk_4=(58, 48, 68)))
    assert sentence.endswith("lines; no method is seen to do better: ntk:4 answers 58 % (48–68).")


def test_a_single_method_and_prose_alone_have_no_conclusion() -> None:
    assert conclusion(study(original=(6, 3, 11))) == []
    nats = {"method": "original", "begin": 0.0, "end": 1.0, "nats": 2.7}
    prose = Summary(2048, ["original"], perplexity=[nats | {"difference": 0.0, "half_width": 0.0}])
    assert conclusion(prose) == []


def test_the_recommended_method_is_named_where_the_best_is_level_with_it() -> None:
    summary = study(original=(6, 3, 11), ntk_4=(16, 11, 22), dynamic_flat=(60, 52, 68),
                    flat_32=(71, 63, 78))  # fmt: skip
    assert choice(summary) == RECOMMENDED
    (sentence,) = conclusion(summary)
    assert sentence.endswith(
        f"lines; {RECOMMENDED}, the recommended method, answers 60 % (52–68); "
        "flat:32 answers 71 % (63–78), no more beyond the intervals."
    )


def test_the_best_is_named_where_it_is_beyond_the_recommended_one() -> None:
    summary = study(original=(6, 3, 11), dynamic_flat=(50, 42, 58), flat_32=(71, 63, 78))
    assert choice(summary) == "flat:32"
    assert is_better(summary)


def test_without_a_gain_nothing_is_better() -> None:
    summary = study(original=(95, 90, 99), ntk_4=(99, 95, 100), dynamic_flat=(96, 91, 99))
    assert not is_better(summary)
    (sentence,) = conclusion(summary)
    assert sentence.endswith(f"no method is seen to do better: {RECOMMENDED} answers 96 % (91–99).")


def test_the_conclusion_is_about_a_task_that_the_model_knows() -> None:
    found = {"original": (6, 3, 11), "ntk_4": (62, 55, 69)}
    (sentence,) = conclusion(study(tasks=("lines", "topics"), **found))
    assert "original answers 6 % (3–11) of the questions about topics; ntk:4 answers" in sentence


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

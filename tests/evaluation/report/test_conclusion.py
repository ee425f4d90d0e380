"""The sentence about a study is what its results show, and no more."""

from __future__ import annotations

from ntk_alibi.evaluation import Summary
from ntk_alibi.evaluation.report.conclusion import best_method, conclusion


def study(**percents: tuple[int, int, int]) -> Summary:
    """Return a study of lines at 1 and 16 training lengths; at 1 all answers are right."""
    names = {name: name.replace("_", ":") for name in percents}
    entries = []
    for name, found in percents.items():
        for multiple, figures in ((1.0, (100, 90, 100)), (16.0, found)):
            shares = zip(("accuracy", "low", "high"), figures, strict=True)
            of = {"task": "lines", "method": names[name], "multiple": multiple, "cases": 64}
            entries.append({**of, **{key: percent / 100 for key, percent in shares}})
    return Summary(2048, list(names.values()), retrieval=entries)


def test_the_best_of_several_methods_is_named_with_its_interval() -> None:
    summary = study(original=(6, 3, 11), ntk_4=(16, 11, 22), ntk_16=(62, 55, 69))
    assert best_method(summary) == "ntk:16"
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

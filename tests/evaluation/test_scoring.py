"""Scorers against published prediction files; intervals against SciPy and simulation."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ntk_alibi.evaluation import score_lines, score_topics
from ntk_alibi.evaluation.comparing.intervals import accuracy_interval
from ntk_alibi.evaluation.harness.longeval_files import read_cases

PREDICTION = re.compile(r"Label: (.*?), Predict: (.*?)(?:, Parsed: (\d+))?, prompt length: \d+")


def published(path: Path) -> tuple[list[tuple[str, str, str]], str]:
    text = path.read_text()
    return PREDICTION.findall(text), text.splitlines()[-1]


@pytest.mark.parametrize("model", ["longchat-7b-16k", "mpt-7b-storywriter"])
def test_score_lines_gives_the_published_accuracies(longeval: Path, model: str) -> None:
    predictions, last = published(longeval / f"predictions_lines200_{model}.txt")
    assert len(predictions) == 50
    for label, prediction, parsed in predictions:
        assert score_lines(prediction, int(parsed))
        assert score_lines(prediction, int(label)) == (label == parsed)
    right = sum(score_lines(prediction, int(label)) for label, prediction, _ in predictions)
    assert f"Accuracy: {right / 50}" == last


@pytest.mark.parametrize(
    ("prediction", "right"),
    [
        ("2416", True),
        (" <2416>.\n", True),
        ("<1>, <2416>", True),
        ("<2416>, line 3", False),
        ("0002416", True),
        ("-2416", True),
        ("2416.0", False),
        ("no number", False),
        ("", False),
        ("2,416", False),
    ],
)
def test_score_lines(prediction: str, right: bool) -> None:
    assert score_lines(prediction, 2416) is right


def test_score_lines_takes_numpy_integers() -> None:
    assert score_lines("5", np.int64(5))


def test_score_topics_on_real_answers(longeval: Path) -> None:
    predictions, _ = published(longeval / "predictions_topics5_mpt-7b-storywriter.txt")
    cases = read_cases(longeval / "topics_5.jsonl", "topics")
    right = []
    for (label, prediction, _), case in zip(predictions, cases, strict=True):
        assert case["expected"][0] == label
        right.append(score_topics(prediction, case["expected"]))
    assert right[0]  # " The psychology of creativity. USER: Okay, I'll be sure to"
    assert not right[1]  # " <TOPIC>.USER: Yes, I remember this topic. Thanks for"
    assert right[2]  # lower case
    assert not right[3]  # " Sleep and the health.USER: ..."
    # Checked by hand: the other right answers also name the first topic before any other.
    assert sum(right) == sum(
        re.sub(r"^the ", "", case["expected"][0].lower()) in prediction.lower()
        for (_, prediction, _), case in zip(predictions, cases, strict=True)
    )


@pytest.mark.parametrize(
    ("prediction", "right"),
    [
        ("The first topic is 'the Role of Art in society'.", True),
        ("role of art in society", True),
        ("the benefits of reading, then the role of art in society", False),
        ("the role of art in society, then the benefits of reading", True),
        ("the role of artists in society", False),
        ("", False),
    ],
)
def test_score_topics(prediction: str, right: bool) -> None:
    assert (
        score_topics(prediction, ["The role of art in society", "The benefits of reading"]) is right
    )


def test_interval_of_single_cases_is_wilsons() -> None:
    # Values of scipy.stats.binomtest(k, n).proportion_ci(method="wilson").
    for k, n, low, high in [
        (0, 10, 0.0, 0.2775401687666166),
        (10, 10, 0.7224598312333834, 1.0),
        (45, 50, 0.7863941115914834, 0.9565216573203262),
    ]:
        interval = accuracy_interval([1] * k + [0] * (n - k), [1] * n)
        assert interval == pytest.approx((low, high), abs=2e-3)


def test_interval_is_wider_for_cases_that_go_together() -> None:
    spread = accuracy_interval([5, 5, 5, 5], [10, 10, 10, 10])
    together = accuracy_interval([10, 0, 10, 0], [10, 10, 10, 10])
    assert together[1] - together[0] > 2 * (spread[1] - spread[0])


def test_interval_covers_the_truth() -> None:
    rng, covered = np.random.default_rng(0), 0
    for _ in range(500):
        chances = rng.beta(8, 4, 12)  # mean 2/3, with a different value for each record
        low, high = accuracy_interval(rng.binomial(20, chances).tolist(), [20] * 12)
        covered += low <= 2 / 3 <= high
    assert covered >= 0.9 * 500


@given(st.lists(st.tuples(st.integers(1, 30), st.floats(0, 1)), min_size=1, max_size=20))
def test_interval_contains_the_accuracy(clusters: list[tuple[int, float]]) -> None:
    cases = [n for n, _ in clusters]
    correct = [round(n * share) for n, share in clusters]
    low, high = accuracy_interval(correct, cases)
    assert 0 <= low <= sum(correct) / sum(cases) + 1e-12
    assert sum(correct) / sum(cases) - 1e-12 <= high <= 1

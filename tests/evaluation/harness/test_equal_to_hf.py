"""Unscaled, `--model ntk_alibi` answers as the harness's `--model hf`, whatever contexts end in."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from ntk_alibi.evaluation.harness import run as harness
from ntk_alibi.evaluation.harness.model import StretchedLM
from ntk_alibi.models import nano_bloom_path

#: For sums of up to some hundred float32 log-probabilities from passes of different lengths.
TOLERANCE = 1e-3

#: Every kind of whitespace that str.rstrip removes and text commonly ends in.
ENDS = ["", " ", "  ", "\n", "\n\n", "\t", "\r\n", " \n", "\u00a0", "\u2003"]

TEXT = "And it came to pass in those days.\nQuestion: who was he?\nAnswer:"


@pytest.fixture(scope="module")
def theirs() -> HFLM:
    with harness.quiet():
        # Its cache scores a one-token continuation with the first token of a longer one (0.4.13).
        return HFLM(str(nano_bloom_path()), device="cpu", dtype="float32", logits_cache=False)


def requests(pairs: list[tuple[Any, ...]], kind: str = "loglikelihood") -> list[Instance]:
    return [Instance(kind, {}, pair, i) for i, pair in enumerate(pairs)]


def compare(theirs: HFLM, pairs: list[tuple[Any, ...]]) -> None:
    for share in (True, False):
        lm = StretchedLM(quiet=True, share_prefixes=share)
        got = lm.loglikelihood(requests(pairs))
        expected = theirs.loglikelihood(requests(pairs), disable_tqdm=True)
        np.testing.assert_allclose(
            [value for value, _ in got], [value for value, _ in expected], atol=TOLERANCE
        )
        assert [greedy for _, greedy in got] == [greedy for _, greedy in expected]


@pytest.mark.parametrize("end", ENDS, ids=repr)
def test_repeated_and_nested_requests(theirs: HFLM, end: str) -> None:
    context = TEXT + end
    longer = context + "God" + end
    pairs = [
        *[(context, "God")] * 2,
        (context, "and"),
        (context, " the LORD"),
        (context, "God said"),
        *[(longer, "and he said")] * 2,
        (longer, "and"),
        (TEXT, end + "God"),
    ]
    compare(theirs, [pair for pair in pairs if pair[1].strip()])


def test_the_choices_of_a_question(theirs: HFLM) -> None:
    choices = ("and", "God", "the king", "a man")
    pairs = [(TEXT + end, choice) for end, choice in itertools.product(ENDS, choices)]
    compare(theirs, pairs)


def test_a_context_of_whitespace_alone_counts_as_none(theirs: HFLM) -> None:
    """The harness's own model refuses one; a continuation keeps the whitespace."""
    lm = StretchedLM(quiet=True)
    got = lm.loglikelihood(requests([("\n", "God"), ("\n", "God")]))
    expected = theirs.loglikelihood(requests([("", "\nGod")]), disable_tqdm=True)
    for value, greedy in got:
        assert value == pytest.approx(expected[0][0], abs=TOLERANCE)
        assert greedy == expected[0][1]


@pytest.mark.parametrize("end", ENDS, ids=repr)
def test_generated_text(theirs: HFLM, end: str) -> None:
    options = {"until": ["\n\n"], "max_gen_toks": 8, "do_sample": False}
    asked = [(TEXT + end, options), ("In the beginning" + end, options)]
    ours = StretchedLM(quiet=True).generate_until(requests(asked, "generate_until"))
    assert ours == theirs.generate_until(requests(asked, "generate_until"), disable_tqdm=True)


@pytest.mark.parametrize("end", ENDS, ids=repr)
def test_rolling_likelihoods(theirs: HFLM, end: str) -> None:
    texts: list[tuple[Any, ...]] = [(TEXT + end,), (TEXT + end + TEXT,)]
    ours = StretchedLM(quiet=True).loglikelihood_rolling(requests(texts), disable_tqdm=True)
    expected = theirs.loglikelihood_rolling(requests(texts), disable_tqdm=True)
    np.testing.assert_allclose(ours, expected, atol=TOLERANCE)

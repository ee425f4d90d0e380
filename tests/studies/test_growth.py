"""The study of texts that grow under a cache: its rules, and that passes are read as it says."""

from __future__ import annotations

import numpy as np
import pytest
from studies.growth import reading
from studies.growth.rules import RULES, WAYS

import ntk_alibi as na
from ntk_alibi.evaluation.records import record
from ntk_alibi.evaluation.records.longeval import Lines
from ntk_alibi.models import load

#: The factors of passes that end at these tokens, for a training length of 100.
ENDS = (40, 90, 140, 180, 200)
FACTORS = {
    "published": (1.0, 1.8, 2.8, 3.6, 4.0),
    "as in RoPE": (1.0, 1.0, 1.8, 2.6, 3.0),
    "in steps": (1.0, 2**0.5, 2.0, 2 * 2**0.5, 4.0),
    "in steps, 1 up to the training length": (1.0, 1.0, 2.0, 2 * 2**0.5, 4.0),
    "held": (1.0, 1.8, 1.8, 1.8, 4.0),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_are_as_the_protocol_has_them(name: str) -> None:
    np.testing.assert_allclose(RULES[name](ENDS, 100), FACTORS[name], rtol=1e-12)


def test_ways_end_at_the_whole_text() -> None:
    for ends in (of(1000) for of in WAYS.values()):
        assert ends == sorted(set(ends))
        assert ends[-1] == 1000


@pytest.mark.slow
def test_one_pass_is_a_call_of_the_patched_model() -> None:
    model, tokenizer, _ = load()
    encode = record.encoder(tokenizer)
    case = Lines(8).case(encode, 600, np.random.default_rng(0))
    with na.patch(model, "ntk:2"):
        expected = record.answered(model, case)
    end = len(case.tokens) - 1
    assert reading.answered_in_passes(model, case, [(end, 2.0)]) == expected
    assert reading.answered_in_passes(model, case, [(300, 2.0), (end, 2.0)]) == expected

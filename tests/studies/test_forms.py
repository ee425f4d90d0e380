"""Records of drawn forms: their answers, their room, and the forms that are held out."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from studies.forms import HELD_OUT, Forms

from ntk_alibi.evaluation.records.record import Encode, encoder
from ntk_alibi.models import load

pytestmark = pytest.mark.slow  # of a program beside the package


@pytest.fixture(scope="module")
def tokenizer() -> object:
    return load()[1]


@pytest.fixture(scope="module")
def encode(tokenizer: object) -> Encode:
    return encoder(tokenizer)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def forms(tokenizer: object) -> Forms:
    return Forms.of(tokenizer, ("And it was so.", "And the evening and the morning were the day."))


@pytest.mark.parametrize(("length", "talks"), [(128, 0.0), (600, 1.0), (2048, 0.3)])
def test_the_record_states_each_answer(
    forms: Forms, encode: Encode, length: int, talks: float
) -> None:
    forms = replace(forms, talks=talks)
    for seed in range(20):
        case = forms.case(encode, length, np.random.default_rng(seed))
        assert len(case.tokens) <= length
        assert 1 <= len(case.answers) == len(case.distances) <= forms.questions
        for (begin, end), distance in zip(case.answers, case.distances, strict=True):
            assert distance > 0
            stated = case.tokens[begin - distance : end - distance]
            assert (stated == case.tokens[begin:end]).all()


def test_records_of_a_form_are_of_this_form(
    tokenizer: object, forms: Forms, encode: Encode
) -> None:
    lines = replace(forms, form=HELD_OUT["lines"])
    for seed in range(5):
        case = lines.case(encode, 400, np.random.default_rng(seed))
        text = tokenizer.decode(case.tokens)  # type: ignore[attr-defined]
        record = dict(re.findall(r"line (.*?): REGISTER_CONTENT is <(.*)>\n", text))
        asked = re.findall(r"What is the REGISTER_CONTENT of line (.*)\? <(.*)\n", text)
        assert len(asked) == len(case.answers)
        assert all(record[name] == value for name, value in asked)


def test_the_same_seed_gives_the_same_record(forms: Forms, encode: Encode) -> None:
    a, b, c = (forms.case(encode, 300, np.random.default_rng(s)).tokens for s in (1, 1, 2))
    assert a.tolist() == b.tolist() != c.tolist()


def test_held_out_forms_are_never_drawn(tokenizer: object, forms: Forms, encode: Encode) -> None:
    held_out = (
        "REGISTER_CONTENT|our .* topic|magic number|number of|your parcel|if key =="
        "|from the meeting|joined; seat"
    )
    for seed in range(200):
        case = replace(forms, talks=0.3).case(encode, 300, np.random.default_rng(seed))
        text = tokenizer.decode(case.tokens)  # type: ignore[attr-defined]
        assert not re.search(held_out, text)


def test_talks_ask_in_turn(tokenizer: object, forms: Forms, encode: Encode) -> None:
    talks = replace(forms, talks=1.0, easy=0.0, simple=0.0)
    found = [talks.new_form(Random(seed)) for seed in range(100)]
    wrapped = [
        form for form in found if re.match("\n[^:>]*:", form.before) and "?\n" in form.question
    ]
    assert len(wrapped) > 30
    for form in wrapped:
        first, second = form.question.split("?\n")
        assert form.lead == " "
        assert form.before.split(":")[0] == first.split(":")[0]
        assert f"\n{second}" in form.after


def test_a_record_without_room_is_an_error(forms: Forms, encode: Encode) -> None:
    with pytest.raises(ValueError, match=r"length must hold a record of forms .*, got 9"):
        forms.case(encode, 9, np.random.default_rng(0))

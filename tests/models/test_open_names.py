"""The small BLOOM answers questions with names that a reader makes up."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch

import ntk_alibi as na
from ntk_alibi.methods import ORIGINAL, RECOMMENDED
from ntk_alibi.models import load

pytestmark = pytest.mark.slow  # reads texts of 3 training lengths

#: A statement, and a question that ends where the value begins. Lines were in a tenth of the
#: training rows, keys in none.
FORMS = {
    "lines": (
        "line {}: REGISTER_CONTENT is <{}>\n",
        "What is the REGISTER_CONTENT of line {}? <",
    ),
    "keys": (
        "\nThe magic number of {} is {}.\n",
        "\nWhat is the magic number of {}? The magic number of {} is",
    ),
}
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


def name(draw: Random) -> str:
    syllables = (draw.choice(CONSONANTS) + draw.choice(VOWELS) for _ in range(4))
    return "{}{}-{}{}".format(*syllables)


def answer(model: Any, tokenizer: Any, text: str) -> str:
    prompt = tokenizer(text, return_tensors="pt")
    tokens = model.generate(**prompt, max_new_tokens=6, do_sample=False)
    return str(tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :]))


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any, int]:
    return load()


@pytest.mark.parametrize("form", FORMS)
def test_what_a_reader_asks_at_three_training_lengths(
    form: str, loaded: tuple[Any, Any, int]
) -> None:
    """Of five questions the original answers none and the stretched all; one may round away."""
    statement, question = FORMS[form]
    model, tokenizer, train_length = loaded
    right = {ORIGINAL: 0, RECOMMENDED: 0}
    for seed in range(5):
        draw = Random(seed)
        names, values = [name(draw) for _ in range(2)], draw.sample(range(1000, 10000), 2)
        told = statement.format(names[0], values[0])
        other = statement.format(names[1], values[1])
        length = len(tokenizer(other)["input_ids"])
        asked = question.replace("{}", names[0])
        text = told + other * (3 * train_length // length) + asked
        for method in right:
            with na.patch(model, method), torch.inference_mode():
                right[method] += answer(model, tokenizer, text).lstrip().startswith(str(values[0]))
    assert right[ORIGINAL] == 0
    assert right[RECOMMENDED] >= 4

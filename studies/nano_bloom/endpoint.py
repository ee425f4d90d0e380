"""The endpoint of the nano BLOOM: what it answers in forms of records that it was not trained on.

Names and values are drawn anew. Within the training length the unchanged model reads records of
drawn length; at three times that length the unchanged and the stretched model read texts as a user
writes them: a statement, one other statement again and again, and a question for the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import numpy as np

import ntk_alibi as na
from ntk_alibi.evaluation.records import corpus
from ntk_alibi.evaluation.records.haystacks import Passkey
from ntk_alibi.evaluation.records.longeval import Lines, Topics
from ntk_alibi.evaluation.records.record import (
    Builder,
    Case,
    Encode,
    RecordKind,
    answered,
    encoder,
)
from ntk_alibi.evaluation.report import markdown
from ntk_alibi.methods import ORIGINAL, RECOMMENDED
from studies.forms import FRESH, HELD_OUT, Form, Forms, fill

#: Seed of the records, which no training has.
SEED = 20261128

#: Questions of a cell, and of them in one record, within the training length, at lengths in tokens.
QUESTIONS, TOGETHER, LENGTHS = 200, 4, (264, 2000)

#: Questions of a cell beyond the training length, and the length of their prompts in training
#: lengths.
QUESTIONS_BEYOND, BEYOND = 100, 3


def table(model: Any, tokenizer: Any, train_length: int) -> str:
    """Measure the endpoint and return it as a table: answered questions in %."""
    encode = encoder(tokenizer)
    known = corpus.sentences(corpus.training_text())
    drawn = replace(
        Forms.of(tokenizer, known), prose=corpus.sentences(corpus.held_out_text()), easy=0.0
    )
    forms = {**HELD_OUT, **FRESH}
    kinds: dict[str, RecordKind] = {
        "forms of the training": replace(drawn, questions=TOGETHER),
        **{f"{x}, open": replace(drawn, questions=TOGETHER, form=f) for x, f in forms.items()},
        "lines of LongEval": Lines(TOGETHER),
        "topics of LongEval": Topics(drawn.prose, TOGETHER),
        "pass key": Passkey(drawn.prose),
    }
    rows = []
    for name, kind in kinds.items():
        cells = [
            share_answered(model, ORIGINAL, QUESTIONS, partial(kind.case, encode, length))
            for length in LENGTHS
        ]
        if form := forms.get(name.removesuffix(", open")):
            draw = partial(prompt, drawn, form, encode, BEYOND * train_length)
            cells += [
                share_answered(model, method, QUESTIONS_BEYOND, draw)
                for method in (ORIGINAL, RECOMMENDED)
            ]
        else:
            cells += ["", ""]
        rows.append([name, *cells])
    header = [f"{length} tokens" for length in LENGTHS]
    header += [f"{BEYOND}x, {method}" for method in (ORIGINAL, "stretched")]
    return markdown.table(["form", *header], rows)


def prompt(drawn: Forms, form: Form, encode: Encode, length: int, rng: np.random.Generator) -> Case:
    """Draw a statement, another one until the length is reached, and a question for the first."""
    draw = Random(int(rng.integers(2**63)))
    names, values = (two_spellings(drawn, draw) for _ in range(2))
    statement, filler = (
        (fill(form.before, name, draw), form.lead + value, form.after)
        for name, value in zip(names, values, strict=True)
    )
    builder = Builder(encode)
    source = builder.state(*statement)
    while len(builder) < length:
        builder.state(*filler)
    builder.ask(fill(form.question, names[0], draw), statement[1], "", source)
    return builder.case()


def two_spellings(drawn: Forms, draw: Random) -> list[str]:
    """Draw two different names or values."""
    found: list[str] = []
    while len(found) < 2:
        found = list(dict.fromkeys(drawn.spellings(8, draw, plain=False)))[:2]
    return found


def share_answered(
    model: Any, method: str, questions: int, draw: Callable[[np.random.Generator], Case]
) -> str:
    """Return how many of so many questions about drawn records a model answers, in %."""
    rng = np.random.default_rng(SEED)
    right: list[bool] = []
    with na.patch(model, method):
        while len(right) < questions:
            right += answered(model, draw(rng))
    return f"{100 * np.mean(right[:questions]):.0f}"

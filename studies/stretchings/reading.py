"""Readings of the study: what each model finds in forms it was not trained on, and its prose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ntk_alibi as na
from ntk_alibi.evaluation.comparing import length_study
from ntk_alibi.evaluation.comparing.plan import Plan
from ntk_alibi.evaluation.records import corpus
from ntk_alibi.evaluation.records.record import answered, cached_encoder, encoder
from ntk_alibi.models import load
from studies.forms import FRESH, HELD_OUT, NEW, Form, Forms
from studies.results_file import ResultsFile
from studies.rules import Rule
from studies.stretchings.models import NanoMPTRecipe

#: The rules, by spelling. Dynamic methods have one factor for each text, which a call reads whole;
#: FACTOR is for texts whose length is known beforehand.
RULES = {
    rule.spelling: rule
    for rule in (
        Rule("original"),
        Rule("interpolation:FACTOR"),
        Rule("ntk:FACTOR", growth=2),
        Rule("flat:FACTOR", growth=2),
        Rule("dynamic-ntk"),
        Rule("dynamic-flat"),
        Rule("dynamic-flat:logn=0.5"),
    )
}


@dataclass(frozen=True)
class ReadingPlan:
    """How many records and windows of prose are read.

    Attributes:
        records: for each multiple of the training length, the number of records of each form.
        questions: number of questions about a record.
        windows: number of windows of prose of `PROSE_AT` training lengths, from whole books that
            the models were not trained on.
        seed: the records of a model are drawn with this and the seed of its training.
    """

    records: tuple[tuple[int, int], ...] = ((1, 8), (2, 8), (4, 16), (8, 8), (16, 4))
    questions: int = 8
    windows: int = 8
    seed: int = 74_000


#: The forms of records, by the beginning of a result's name.
KINDS = {"records": HELD_OUT, "fresh": FRESH, "new": NEW}

#: Multiples of the training length of the windows of prose, and of records of `FRESH` forms.
PROSE_AT, FRESH_AT = 4, (1, 4)


def read(recipe: NanoMPTRecipe, folder: Path, plan: ReadingPlan) -> Iterator[str]:
    """Read with a trained model what is not stored yet; store each result and yield its name.

    Args:
        recipe: settings of the model's training.
        folder: folder of the model, which gets a file for each result.
        plan: how many records and windows are read.

    Raises:
        ValueError: the folder holds results of another plan.
    """
    work: dict[str, Callable[[Any], dict[str, Any]]] = {
        f"{kind}-{multiple}x": partial(_answers, recipe, plan, multiple, count, forms)
        for kind, forms in KINDS.items()
        for multiple, count in plan.records
        if forms is not FRESH or multiple in FRESH_AT
    }
    work["prose"] = partial(_nats, recipe, plan, folder / "answers")
    loaded = None
    for name, measure in work.items():
        file = ResultsFile(folder / f"{name}.json", recipe, plan)
        if file.read() is None:
            loaded = loaded or load(folder)
            file.write(measure(loaded))
            yield f"{recipe.name}, {name}"


def _answers(
    recipe: NanoMPTRecipe,
    plan: ReadingPlan,
    multiple: int,
    count: int,
    forms: dict[str, Form],
    loaded: Any,
) -> dict[str, Any]:
    """Return the size, and by form and by rule the distance and the outcome of each question."""
    model, tokenizer, _ = loaded
    encode = cached_encoder(encoder(tokenizer))
    known, unseen = (
        corpus.sentences(text(recipe.held_out))
        for text in (corpus.training_text, corpus.held_out_text)
    )
    drawn = replace(Forms.of(tokenizer, known), prose=unseen, questions=plan.questions, easy=0.0)
    found: dict[str, dict[str, list[tuple[int, bool]]]] = {}
    for name, form in forms.items():
        place = [*HELD_OUT, *FRESH, *NEW].index(name)
        kind = replace(drawn, form=form)
        rng = np.random.default_rng([plan.seed, recipe.seed, multiple, place])
        cases = [kind.case(encode, multiple * recipe.train_length, rng) for _ in range(count)]
        for spelling, rule in RULES.items():
            with na.patch(model, rule.method(multiple)):
                outcomes = [
                    (distance, right)
                    for case in cases
                    for distance, right in zip(case.distances, answered(model, case), strict=True)
                ]
            found.setdefault(name, {})[spelling] = outcomes
    return {"parameters": model.num_parameters(), "answers": found}


def _nats(recipe: NanoMPTRecipe, plan: ReadingPlan, answers: Path, loaded: Any) -> dict[str, Any]:
    """Return nats a token of prose beyond the training length minus the original's, by rule."""
    length = recipe.train_length
    methods = {spelling: rule.method(PROSE_AT) for spelling, rule in RULES.items()}
    study = Plan(
        length,
        methods=tuple(methods.values()),
        multiples=(PROSE_AT,),
        prose_windows=plan.windows,
        line_records=0,
        topic_records=0,
        seed=plan.seed + recipe.seed,
        split="held-out-books",
    )
    model, tokenizer, _ = loaded
    found = length_study.evaluate(model, tokenizer, study, answers, quiet=True).perplexity
    beyond = found[found["begin"] >= 1].groupby("method")["difference"].mean()
    return {"nats": {spelling: float(beyond[method]) for spelling, method in methods.items()}}

"""What a model finds in records that it reads in one pass or in several, by the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

import ntk_alibi as na
from ntk_alibi.evaluation.records import corpus
from ntk_alibi.evaluation.records.record import Case, cached_encoder, encoder
from studies.forms import FRESH, HELD_OUT, Forms
from studies.growth.rules import ORIGINAL, RULES, WAYS, original

#: The forms of the records: known ones, since they choose a rule and are no endpoint.
FORMS = {name: {**HELD_OUT, **FRESH}[name] for name in ("lines", "keys", "numbers", "code")}


@dataclass(frozen=True)
class GrowthPlan:
    """How many records are read.

    Attributes:
        records: for each length in training lengths, the number of records of each form.
        questions: number of questions about a record.
        seed: the records of a model are drawn with this and the seed of its training.
    """

    records: tuple[tuple[float, int], ...] = (
        (0.13, 8), (0.5, 4), (1.0, 4), (1.4, 3), (2.0, 3), (2.8, 2), (4.0, 2), (8.0, 2),
    )  # fmt: skip
    questions: int = 16
    seed: int = 78_000


def read(loaded: Any, plan: GrowthPlan, seed: int, multiple: float, count: int) -> dict[str, Any]:
    """Read records of one length with a model.

    Args:
        loaded: a model, its tokenizer and its training length.
        plan: how many questions are asked, and the seed.
        seed: the seed of the model's training.
        multiple: the length in training lengths.
        count: the number of records of each form.

    Returns:
        The shares of right answers, by rule and way: of those farther back than the training
        length, or of all where no record is longer than it; and their number.
    """
    model, tokenizer, train_length = loaded
    encode = cached_encoder(encoder(tokenizer))
    known, unseen = map(corpus.sentences, (corpus.training_text(), corpus.held_out_text()))
    drawn = replace(Forms.of(tokenizer, known), prose=unseen, questions=plan.questions, easy=0.0)
    shortest = train_length if multiple > 1 else 0
    right: dict[str, dict[str, list[bool]]] = {}
    for place, form in enumerate(FORMS.values()):
        kind = replace(drawn, form=form)
        rng = np.random.default_rng([plan.seed, seed, round(100 * multiple), place])
        for _ in range(count):
            case = kind.case(encode, round(multiple * train_length), rng)
            for rule, of_ways in _answered(model, case, train_length).items():
                for way, answers in of_ways.items():
                    far = zip(answers, case.distances, strict=True)
                    found = [x for x, distance in far if distance > shortest]
                    right.setdefault(rule, {}).setdefault(way, []).extend(found)
    shares = {rule: {way: float(np.mean(x)) for way, x in ws.items()} for rule, ws in right.items()}
    return {"shares": shares, "questions": len(right[ORIGINAL]["one pass"])}


def _answered(model: Any, case: Case, train_length: int) -> dict[str, dict[str, list[bool]]]:
    """Return which questions are answered, by rule and way; equal passes run once."""
    kept: dict[tuple[tuple[int, float], ...], list[bool]] = {}
    found: dict[str, dict[str, list[bool]]] = {}
    for rule, factors in {ORIGINAL: original, **RULES}.items():
        for way, ends_of in WAYS.items():
            ends = ends_of(len(case.tokens) - 1)
            passes = tuple(zip(ends, factors(ends, train_length), strict=True))
            if passes not in kept:
                kept[passes] = answered_in_passes(model, case, passes)
            found.setdefault(rule, {})[way] = kept[passes]
    return found


def answered_in_passes(model: Any, case: Case, passes: Sequence[tuple[int, float]]) -> list[bool]:
    """Return for each question whether the likeliest token is right at all its tokens.

    Args:
        model: a causal language model.
        case: the record, with its questions.
        passes: the tokens known at the end of each pass, and the factor of NTK in it.
    """
    tokens = torch.from_numpy(case.tokens)
    cache, begin, states = DynamicCache(), 0, []
    with torch.inference_mode():
        for end, factor in passes:
            with na.patch(model, na.NTK(factor)):
                # By place: versions of transformers name the cache differently.
                output = model.base_model(tokens[None, begin:end], cache, use_cache=True)
            states.append(output[0][0])
            begin = end
        hidden = torch.cat(states)
        head = model.get_output_embeddings()
        return [
            bool((head(hidden[b - 1 : e - 1]).argmax(-1) == tokens[b:e]).all())
            for b, e in case.answers
        ]

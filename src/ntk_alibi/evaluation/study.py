"""Comparing methods on one model: retrieval at several lengths, perplexity by position."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from ntk_alibi.evaluation import corpus
from ntk_alibi.evaluation.journal import Journal
from ntk_alibi.evaluation.methods import DEFAULT_METHODS, parse_method
from ntk_alibi.evaluation.retrieval import (
    answers_right,
    encoder,
    negative_log_likelihood,
    prose_windows,
)
from ntk_alibi.evaluation.scoring import accuracy_interval
from ntk_alibi.evaluation.tasks import Case, Encode, Lines, Task, Topics, cached_encoder
from ntk_alibi.integrations import patch
from ntk_alibi.scaling import Scaling

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: Width of the distance ranges, in training lengths.
DISTANCE_BIN = 0.5


@dataclass(frozen=True)
class Plan:
    """What a study does; the defaults are those of `ntk-alibi eval`.

    Attributes:
        train_length: tokens, the unit of all lengths and distances below.
        methods: names for `parse_method`.
        multiples: of the training length, at which retrieval is tested.
        line_records: records of lines for each length.
        line_questions: about each, at most one for 64 tokens trained at.
        topic_records: conversations for each length.
        topic_questions: questions about each.
        prose_windows: windows for the perplexity, of the greatest length; 0 for none.
        seed: of the records; all methods see the same ones.
    """

    train_length: int
    methods: tuple[str, ...] = DEFAULT_METHODS
    multiples: tuple[float, ...] = (1, 1.5, 2, 3, 4)
    line_records: int = 8
    line_questions: int = 32
    topic_records: int = 12
    topic_questions: int = 5
    prose_windows: int = 8
    seed: int = 2026

    @property
    def steps(self) -> int:
        """Forward passes, for progress bars."""
        records = (self.line_records + self.topic_records) * len(self.multiples)
        return (records + self.prose_windows) * len(self.methods)


#: What --quick changes: fewer and shorter records, no prose.
QUICK: dict[str, Any] = {
    "multiples": (1, 2, 3),
    "line_records": 3,
    "topic_records": 3,
    "prose_windows": 0,
}


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    plan: Plan,
    path: Path,
    *,
    quiet: bool = False,
    wrap: Callable[[Scaling | None], Scaling | None] = lambda scaling: scaling,
) -> Summary:
    """Do a study, resuming what path holds of it, with a progress bar; its summary.

    Args:
        model: an unpatched BLOOM.
        tokenizer: the model's.
        plan: what to do.
        path: of the journal, kept when done.
        quiet: no progress bar.
        wrap: makes the scaling to patch with from each method's.
    """
    work = {"plan": asdict(plan), "model": _fingerprint(model)}
    with Journal(path, json.loads(json.dumps(work))) as journal:
        steps = run(model, tokenizer, plan, journal, wrap=wrap)
        with Progress(console=Console(stderr=True), disable=quiet) as progress:
            for _ in progress.track(steps, total=plan.steps, description="evaluating"):
                pass
        return summarise(plan, journal)


def _fingerprint(model: PreTrainedModel) -> str:
    """Tells checkpoints apart."""
    return float(sum(p.detach().double().sum() for p in model.parameters())).hex()


def run(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    plan: Plan,
    journal: Journal,
    *,
    wrap: Callable[[Scaling | None], Scaling | None],
) -> Iterator[None]:
    """Do what the journal does not hold yet; yields after each of `plan.steps` steps.

    Args:
        model: an unpatched BLOOM.
        tokenizer: the model's.
        plan: what to do.
        journal: takes each result as it comes; `summarise` reads it.
        wrap: as for `evaluate`.
    """
    methods = [parse_method(name, plan.train_length) for name in plan.methods]
    for piece, measure in _pieces(cached_encoder(encoder(tokenizer)), plan):
        for method in methods:
            key = f"{piece}/{method.name}"
            if key not in journal:
                with patch(model, wrap(method.scaling)):
                    journal.write(key, measure(model))
            yield


def _pieces(
    encode: Encode, plan: Plan
) -> Iterator[tuple[str, Callable[[PreTrainedModel], dict[str, Any]]]]:
    """Name of each piece of work, and what measures it on a patched model."""
    for task, records in _tasks(plan):
        for multiple in plan.multiples:
            for record in range(records):
                name = f"{task.name}/{multiple:g}/{record}"
                rng = np.random.default_rng([plan.seed, *name.encode()])
                case = task.case(encode, int(multiple * plan.train_length), rng)
                yield name, partial(_answers, case=case)
    if plan.prose_windows:
        length = int(max(plan.multiples) * plan.train_length)
        bins = math.ceil(2 * max(plan.multiples))
        windows = prose_windows(encode, corpus.held_out_text(), length, plan.prose_windows)
        for number, window in enumerate(windows):
            yield f"prose/{number}", partial(_nats, window=window, bins=bins)


def _tasks(plan: Plan) -> list[tuple[Task, int]]:
    prose = corpus.sentences(corpus.held_out_text())
    line_questions = min(plan.line_questions, max(1, plan.train_length // 64))
    tasks: list[tuple[Task, int]] = [
        (Lines(line_questions), plan.line_records),
        (Topics(prose, plan.topic_questions), plan.topic_records),
    ]
    return [(task, records) for task, records in tasks if records]


def _answers(model: PreTrainedModel, *, case: Case) -> dict[str, Any]:
    return {"right": answers_right(model, case), "distances": case.distances}


def _nats(model: PreTrainedModel, *, window: NDArray[np.int64], bins: int) -> dict[str, Any]:
    return {"nats": negative_log_likelihood(model, window, bins).tolist()}


class Summary(dict[str, Any]):
    """What `summarise` returns: plain values that notebooks show as tables."""

    def _repr_html_(self) -> str:
        from ntk_alibi.evaluation import report

        return "".join(map(report.html, report.study_tables(self)))


def summarise(plan: Plan, journal: Journal) -> Summary:
    """The results of a finished study as plain values.

    Returns:
        A dict of train_length; methods, name to label; retrieval, for each task, method and
            multiple of the training length: cases, accuracy and its 95 % interval (low, high);
            by_distance, the same for records of all lengths together, by the distance of the answer
            (begin, end, in training lengths); perplexity, for each method and range of positions
            (begin, end, in training lengths): nats a token, and the difference from the first
            method, paired by window, with its 95 % half-width.
    """
    methods = {name: parse_method(name, plan.train_length).label for name in plan.methods}
    longest = max(plan.multiples)
    retrieval, by_distance = [], []
    for task, records in _tasks(plan):
        for name in methods:
            of_all_lengths = []
            for multiple in plan.multiples:
                answers = [
                    journal[f"{task.name}/{multiple:g}/{record}/{name}"]
                    for record in range(records)
                ]
                of_all_lengths += answers
                cell = _accuracy([a["right"] for a in answers])
                retrieval.append({"task": task.name, "method": name, "multiple": multiple, **cell})
            by_distance += [
                {"task": task.name, "method": name, **cell}
                for cell in _by_distance(of_all_lengths, plan.train_length, longest)
            ]
    return Summary(
        train_length=plan.train_length,
        methods=methods,
        retrieval=retrieval,
        by_distance=by_distance,
        perplexity=_perplexity(plan, journal),
    )


def _accuracy(right: list[list[bool]]) -> dict[str, Any]:
    """Of clusters of answers; empty ones do not count."""
    clusters = [cluster for cluster in right if cluster]
    cases, correct = [len(c) for c in clusters], [sum(c) for c in clusters]
    if not cases:
        return {"cases": 0, "accuracy": None, "low": None, "high": None}
    low, high = accuracy_interval(correct, cases)
    return {"cases": sum(cases), "accuracy": sum(correct) / sum(cases), "low": low, "high": high}


def _by_distance(
    answers: list[dict[str, Any]], train_length: int, longest: float
) -> list[dict[str, Any]]:
    edges = np.arange(0.0, longest + DISTANCE_BIN, DISTANCE_BIN)
    entries = []
    for begin, end in itertools.pairwise(edges.tolist()):
        inside = [
            [
                right
                for right, distance in zip(a["right"], a["distances"], strict=True)
                if begin <= distance / train_length < end
            ]
            for a in answers
        ]
        entries.append({"begin": begin, "end": end, **_accuracy(inside)})
    return entries


def _perplexity(plan: Plan, journal: Journal) -> list[dict[str, Any]]:
    if not plan.prose_windows:
        return []
    nats = {
        name: np.array(
            [journal[f"prose/{number}/{name}"]["nats"] for number in range(plan.prose_windows)]
        )
        for name in plan.methods
    }
    entries = []
    for name, windows in nats.items():
        paired = windows - nats[plan.methods[0]]
        spread = (
            paired.std(axis=0, ddof=1) if len(windows) > 1 else np.full(paired.shape[1], np.nan)
        )
        half_width = 1.96 * spread / math.sqrt(len(windows))
        width = max(plan.multiples) / windows.shape[1]
        for i, mean in enumerate(windows.mean(axis=0)):
            entries.append(
                {
                    "method": name,
                    "begin": i * width,
                    "end": (i + 1) * width,
                    "nats": float(mean),
                    "difference": float(paired.mean(axis=0)[i]),
                    "half_width": float(half_width[i]),
                }
            )
    return entries

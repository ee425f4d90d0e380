"""Comparing methods on one model: retrieval at several lengths, perplexity by position."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi.evaluation import harness
from ntk_alibi.evaluation.methods import DEFAULT_METHODS, Method, model_arguments, parse_method
from ntk_alibi.evaluation.scoring import accuracy_interval
from ntk_alibi.models.loading import NANO_BLOOM
from ntk_alibi.scaling import Scaling

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ntk_alibi.evaluation.language_model import StretchedLM

#: Width of the distance ranges, in training lengths.
DISTANCE_BIN = 0.5

#: Ranges of depth, from the beginning of a record to its questions.
DEPTH_BINS = 8

Samples = dict[str, dict[str, list[dict[str, Any]]]]


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
    def tasks(self) -> dict[str, dict[str, Any]]:
        """The harness's tasks, and what their data are made from."""
        lengths = [round(multiple * self.train_length) for multiple in self.multiples]
        questions = min(self.line_questions, max(1, self.train_length // 64))
        drawn = {"lengths": lengths, "seed": self.seed}
        longest = math.ceil(2 * max(self.multiples))
        tasks = {
            "lines": {"records": self.line_records, "questions": questions, **drawn},
            "topics": {"records": self.topic_records, "questions": self.topic_questions, **drawn},
            "prose": {"lengths": [max(lengths)], "windows": self.prose_windows, "bins": longest},
        }
        wanted = {
            "lines": self.line_records,
            "topics": self.topic_records,
            "prose": self.prose_windows,
        }
        return {name: made for name, made in tasks.items() if wanted[name]}


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
    name: str = NANO_BLOOM,
) -> Summary:
    """Do a study, resuming what path holds of it, with progress bars; its summary.

    Args:
        model: an unpatched BLOOM, MPT or Falcon.
        tokenizer: the model's.
        plan: what to do.
        path: folder of all single answers, kept when done.
        quiet: no progress bars.
        wrap: makes the scaling to patch with from each method's.
        name: of the model, in commands.

    Returns:
        As `summarise`, in all processes that share the work.
    """
    from ntk_alibi.evaluation.language_model import StretchedLM

    methods = [parse_method(method, plan.train_length) for method in plan.methods]
    tasks: dict[str, Any] = {}
    with harness.quiet():
        for task, made_from in plan.tasks.items():
            metadata = {**made_from, "tokenizer": tokenizer}
            tasks |= harness.load_tasks([f"ntk_alibi_{task}"], metadata)["tasks"]
        lm = StretchedLM(model, tokenizer=tokenizer, train_length=plan.train_length, quiet=quiet)
    samples: Samples = {}
    settings = {}
    for method in methods:
        lm.stretch(Method(method.name, method.label, wrap(method.scaling)))
        settings[method.name] = lm.get_model_info()
        results = harness.answer(lm, {"tasks": tasks}, cache_file(lm, path))
        samples[method.name] = results["samples"]
    lm.release()
    summary = summarise(plan, samples)
    summary |= {"settings": settings, "commands": commands(plan, name)}
    return summary


def cache_file(lm: StretchedLM, folder: Path) -> Path:
    """Where the harness keeps a method's answers; another model's are elsewhere."""
    weights = float(sum(p.detach().double().sum() for p in lm.model.parameters())).hex()
    info = json.dumps([weights, lm.get_model_info()], default=str, sort_keys=True)
    digest = hashlib.sha256(info.encode()).hexdigest()[:16]
    return folder / f"{lm.method.name.replace(':', '-')}-{digest}"


def commands(plan: Plan, name: str) -> dict[str, dict[str, str]]:
    """The command that gives each cell again: method, then task and length."""
    found: dict[str, dict[str, str]] = {}
    for method in plan.methods:
        model = f"pretrained={name},{model_arguments(method)},train_length={plan.train_length}"
        found[method] = {
            f"{task}/{length}": shlex.join(
                [
                    *("ntk-alibi", "lm-eval", "--model", "ntk_alibi", "--model_args", model),
                    *("--tasks", f"ntk_alibi_{task}"),
                    *metadata_argument({**made_from, "lengths": [length]}),
                ]
            )
            for task, made_from in plan.tasks.items()
            for length in made_from["lengths"]
        }
    return found


def metadata_argument(metadata: dict[str, Any]) -> list[str]:
    """Metadata as arguments of the harness's command line."""
    return ["--metadata", json.dumps(metadata)] if metadata else []


class Summary(dict[str, Any]):
    """What `summarise` returns: plain values that notebooks show as tables."""

    def _repr_html_(self) -> str:
        from ntk_alibi.evaluation import report

        return "".join(map(report.html, report.study_tables(self)))


def summarise(plan: Plan, samples: Samples) -> Summary:
    """The results of a finished study as plain values.

    Args:
        plan: what was done.
        samples: the harness's, of each method and task.

    Returns:
        train_length and methods (name to label);
        retrieval: for each task, method and multiple of the training length: cases, accuracy and
            its 95 % interval (low, high);
        by_distance: the same for records of all lengths together, by the distance of the answer
            (begin, end, in training lengths);
        by_depth: the same for each multiple, by where the answer stands in the record (begin, end,
            from 0, its beginning, to 1, the questions);
        perplexity: for each method and range of positions (begin, end, in training lengths): nats a
            token, and the difference from the first method, paired by window, with its 95 %
            half-width;
        records: for each method, right answers and questions of each record;
        windows: for each method, nats a token of each window of prose.
    """
    methods = {name: parse_method(name, plan.train_length).label for name in plan.methods}
    retrieval, by_distance, by_depth = [], [], []
    for task in plan.tasks:
        for name in methods:
            answers = _answers(samples[name].get(f"ntk_alibi_{task}", []))
            if task == "prose" or not answers:
                continue
            of = {"task": task, "method": name}
            for multiple in plan.multiples:
                some = [a for a in answers if a["length"] == round(multiple * plan.train_length)]
                cell = _accuracy([a["right"] for a in some])
                retrieval.append({**of, "multiple": multiple, **cell})
                by_depth += [{**of, "multiple": multiple, **cell} for cell in _by_depth(some)]
            longest = max(plan.multiples)
            by_distance += [
                {**of, **cell} for cell in _by_distance(answers, plan.train_length, longest)
            ]
    return Summary(
        {
            "train_length": plan.train_length,
            "methods": methods,
            "retrieval": retrieval,
            "by_distance": by_distance,
            "by_depth": by_depth,
            "perplexity": _perplexity(plan, samples),
            "records": {name: _counts(plan, samples[name]) for name in methods},
            "windows": {
                name: nats_by_window(samples[name]["ntk_alibi_prose"]).mean(axis=1).tolist()
                for name in methods
                if "ntk_alibi_prose" in samples[name]
            },
        }
    )


def _counts(plan: Plan, samples: dict[str, list[dict[str, Any]]]) -> list[list[int]]:
    """Right answers and questions of each record, of all tasks."""
    records = [
        answer["right"]
        for task in plan.tasks
        if task != "prose"
        for answer in _answers(samples.get(f"ntk_alibi_{task}", []))
    ]
    return [[sum(right), len(right)] for right in records]


def _answers(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each record was, and which of its questions were answered right."""
    keys = ("length", "distances", "depths")
    return [
        {
            **{key: sample["doc"].get(key) for key in keys},
            "right": [greedy for _, greedy in sample["filtered_resps"]],
        }
        for sample in sorted(samples, key=lambda sample: sample["doc_id"])
    ]


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
        inside = _inside(answers, "distances", begin, end, train_length)
        entries.append({"begin": begin, "end": end, **_accuracy(inside)})
    return entries


def _by_depth(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    edges = np.linspace(0.0, 1.0, DEPTH_BINS + 1).tolist()
    return [
        {"begin": begin, "end": end, **_accuracy(_inside(answers, "depths", begin, end))}
        for begin, end in itertools.pairwise(edges)
    ]


def _inside(
    answers: list[dict[str, Any]], key: str, begin: float, end: float, unit: float = 1
) -> list[list[bool]]:
    """Of each record, the answers whose value lies in [begin, end)."""
    return [
        [
            right
            for right, value in zip(a["right"], a[key], strict=True)
            if begin <= value / unit < end
        ]
        for a in answers
    ]


def nats_by_window(samples: Sequence[dict[str, Any]]) -> NDArray[np.float64]:
    """Mean nats a token, (windows, ranges of positions)."""
    ordered = sorted(samples, key=lambda sample: sample["doc_id"])
    likelihoods = [[ll for ll, _ in sample["filtered_resps"]] for sample in ordered]
    tokens = [sample["doc"]["tokens"] for sample in ordered]
    nats: NDArray[np.float64] = -np.array(likelihoods) / np.array(tokens)
    return nats


def _perplexity(plan: Plan, samples: Samples) -> list[dict[str, Any]]:
    if "prose" not in plan.tasks:
        return []
    nats = {name: nats_by_window(samples[name]["ntk_alibi_prose"]) for name in plan.methods}
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

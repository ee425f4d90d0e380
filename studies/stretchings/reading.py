"""Readings of the study: the records and methods of each model, and its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ntk_alibi.evaluation.comparing import length_study
from ntk_alibi.evaluation.comparing.intervals import accuracy_entry
from ntk_alibi.evaluation.comparing.plan import Plan
from ntk_alibi.evaluation.harness import run as harness
from ntk_alibi.evaluation.harness.model import StretchedLM
from ntk_alibi.methods import parse_method
from ntk_alibi.models import load
from studies.results_file import ResultsFile
from studies.rules import Rule
from studies.stretchings.models import NanoModel

#: The rules, by spelling. Dynamic methods follow the prefix of each query; FACTOR is for texts
#: whose length is known beforehand.
RULES = {
    rule.spelling: rule
    for rule in (
        Rule("original"),
        Rule("dynamic-ntk"),
        Rule("dynamic-ntk:1"),
        Rule("dynamic-flat"),
        Rule("dynamic-knee:START:7"),
        Rule("dynamic-flat:logn=0.5"),
        Rule("dynamic-knee:START:7:logn=0.5"),
        Rule("ntk:FACTOR", growth=2),
        Rule("flat:FACTOR", growth=2),
        Rule("knee:START:FACTOR", growth=7),
        Rule("flat:FACTOR:logn=0.5", growth=2),
    )
}

#: The rule that all others are compared with.
BASELINE = "dynamic-ntk"

#: The rules of the multiples that only some models read; see `NanoModel.farther`.
FARTHER_RULES = (
    BASELINE,
    "dynamic-flat",
    "dynamic-flat:logn=0.5",
    "dynamic-knee:START:7:logn=0.5",
    "flat:FACTOR:logn=0.5",
)

#: Prompts of one question each, which are answered by generation with a cache, and their multiple.
GENERATED, GENERATED_AT = "ntk_alibi_lines_generated", 4


@dataclass(frozen=True)
class ReadingPlan:
    """How many records, by multiple of the training length, and windows of prose are read.

    Attributes:
        records: for each multiple, the number of records of lines and of conversations.
        passkeys: for each multiple, the number of records with one pass key.
        windows: number of windows of prose of PROSE_AT training lengths, from whole books that the
            models were not trained on.
        prompts: number of prompts for generation with a cache.
        seed: the records of a model are drawn with this plus the seed of its training.
    """

    records: tuple[tuple[int, int], ...] = ((1, 6), (2, 6), (4, 12), (8, 6), (16, 2), (32, 1))
    passkeys: tuple[tuple[int, int], ...] = ((1, 16), (2, 16), (4, 24), (8, 12), (16, 6), (32, 3))
    windows: int = 13
    prompts: int = 24
    seed: int = 51_000


#: Multiple of the training length of the windows of prose.
PROSE_AT = 4

#: Kinds of records that are not read at the greatest multiple, which takes most of the time.
NOT_FARTHEST = ("topic", "multikey")


def plans(model: NanoModel, reading: ReadingPlan) -> dict[str, Plan]:
    """Return the length studies of a model, by name."""
    made: dict[str, Plan] = {}
    counts, passkeys = dict(reading.records), dict(reading.passkeys)
    for multiple, count in counts.items():
        kinds = [x for x in model.tasks if multiple < max(counts) or x not in NOT_FARTHEST]
        records = {"line_records": 0, "topic_records": 0}
        records |= {
            f"{kind}_records": passkeys[multiple] if kind == "passkey" else count for kind in kinds
        }
        made[f"records-{multiple}x"] = _plan(model, reading, multiple, records)
    windows = {"prose_windows": reading.windows, "line_records": 0, "topic_records": 0}
    made["prose"] = _plan(model, reading, PROSE_AT, windows)
    for multiple, count in model.farther:
        lines = {"line_records": count, "topic_records": 0}
        made[f"records-{multiple}x"] = _plan(model, reading, multiple, lines, FARTHER_RULES)
    return made


def _plan(
    model: NanoModel,
    reading: ReadingPlan,
    multiple: int,
    counts: dict[str, Any],
    rules: Sequence[str] | None = None,
) -> Plan:
    length = model.recipe.train_length
    return Plan(
        length,
        methods=tuple(
            dict.fromkeys(RULES[rule].method(multiple, length) for rule in rules or RULES)
        ),
        multiples=(multiple,),
        seed=reading.seed + model.recipe.seed,
        split="held-out-books",
        **{"prose_windows": 0, **counts},
    )


def read(model: NanoModel, folder: Path, reading: ReadingPlan) -> Iterator[str]:
    """Read with a trained model what is not stored yet; store each result and yield its name.

    Args:
        model: the model.
        folder: folder of its checkpoint, which gets a file for each result.
        reading: how many records and windows are read.

    Raises:
        ValueError: the folder holds results of another plan.
    """
    answers = folder / "answers"
    work: dict[str, Callable[[Any], Any]] = {
        name: partial(_study, plan=plan, answers=answers / name)
        for name, plan in plans(model, reading).items()
    }
    if reading.prompts:
        work["generated"] = partial(_generated, model=model, reading=reading, answers=answers)
    loaded = None
    for name, measure in work.items():
        file = ResultsFile(folder / f"{name}.json", model.recipe, reading)
        if file.read() is None:
            loaded = loaded or load(folder)
            file.write(measure(loaded))
            yield f"{model.name}, {name}"


def _study(loaded: Any, plan: Plan, answers: Path) -> dict[str, Any]:
    model, tokenizer, _ = loaded
    summary = length_study.evaluate(model, tokenizer, plan, answers, quiet=True)
    kept = ("retrieval", "by_distance", "perplexity")
    return {key: getattr(summary, key).to_dict("records") for key in kept}


def _generated(
    loaded: Any, model: NanoModel, reading: ReadingPlan, answers: Path
) -> dict[str, Any]:
    network, tokenizer, train_length = loaded
    length = GENERATED_AT * train_length
    metadata = {
        "lengths": [length],
        "records": reading.prompts,
        "seed": reading.seed + model.recipe.seed,
        "split": "held-out-books",
    }
    names = dict.fromkeys(rule.method(GENERATED_AT, train_length) for rule in RULES.values())
    tasks = harness.load_tasks([GENERATED], {**metadata, "tokenizer": tokenizer})
    lm = StretchedLM(network, tokenizer=tokenizer, train_length=train_length, quiet=True)
    methods = [parse_method(name, train_length) for name in names]
    samples, _ = harness.answers(lm, methods, tasks, answers / "generated")
    rows = []
    for name, of_method in samples.items():
        right = [int(sample["accuracy"]) for sample in of_method[GENERATED]]
        rows.append({"method": name, **accuracy_entry(right, [1] * len(right))})
    return {"generated": rows}

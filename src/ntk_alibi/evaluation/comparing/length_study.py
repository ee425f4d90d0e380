"""Comparison of methods on a model: retrieval at several lengths, perplexity by position."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ntk_alibi import _checks, _files
from ntk_alibi.evaluation.comparing.plan import Plan
from ntk_alibi.evaluation.comparing.summary import Summary, summarise
from ntk_alibi.evaluation.harness import run as harness
from ntk_alibi.methods import ORIGINAL, Method, parse_method
from ntk_alibi.models.loading import NANO_BLOOM
from ntk_alibi.scaling import Scaling

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    plan: Plan,
    path: str | os.PathLike[str],
    *,
    quiet: bool = False,
    wrap: Callable[[Scaling | None], Scaling | None] = lambda scaling: scaling,
    name: str = NANO_BLOOM,
) -> Summary:
    """Run a study with progress bars and summarise it; answers that are in path are reused.

    Args:
        model: an unpatched decoder that `patch` takes.
        tokenizer: the model's tokenizer.
        plan: lengths, records and methods of the study.
        path: folder for all answers, which stays.
        quiet: whether to hide the progress bars.
        wrap: returns the scaling to patch with for the scaling of a method.
        name: name of the model in the commands of the summary.

    Returns:
        The summary, in all processes of a job.

    Raises:
        TypeError, ValueError: an argument is wrong.
    """
    check_study(model, tokenizer, path)
    study = prepare(model, tokenizer, plan, wrap)
    return answer(model, tokenizer, study, path, quiet=quiet, name=name)


@dataclass(frozen=True)
class Study:
    """A plan with its methods and its tasks, as the harness takes them."""

    plan: Plan
    methods: list[Method]
    tasks: dict[str, Any]


def prepare(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    plan: Plan,
    wrap: Callable[[Scaling | None], Scaling | None] = lambda scaling: scaling,
) -> Study:
    """Check a plan for a model, and return its study; the model may have no parameters yet.

    Raises:
        TypeError, ValueError: a method cannot patch the model; a text is too short for its
            questions.
    """
    from ntk_alibi.integrations import patch

    if not isinstance(plan, Plan):
        raise TypeError(f"plan must be a Plan, got {_checks.briefly(plan)}")
    named = [parse_method(method, plan.train_length) for method in plan.methods]
    methods = [replace(method, scaling=wrap(method.scaling)) for method in named]
    for method in methods:
        scaling = ORIGINAL if method.scaling is None else method.scaling
        with patch(model, scaling, log_n=method.log_n):
            pass
    tasks: dict[str, Any] = {}
    for task, made_from in plan.tasks.items():
        tasks |= harness.load_tasks([f"ntk_alibi_{task}"], {**made_from, "tokenizer": tokenizer})
    return Study(plan, methods, tasks)


def answer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    study: Study,
    path: str | os.PathLike[str],
    *,
    quiet: bool,
    name: str,
) -> Summary:
    """Run a study, and return what `evaluate` returns."""
    from ntk_alibi.evaluation.harness.model import StretchedLM

    length = study.plan.train_length
    with harness.quiet():
        lm = StretchedLM(model, tokenizer=tokenizer, train_length=length, quiet=quiet)
    with _files.only_run("path", path):
        samples, settings = harness.answers(lm, study.methods, study.tasks, Path(path))
    repeated = commands(study.plan, name)
    return summarise(study.plan, samples, settings=settings, commands=repeated)


def probe(plan: Plan) -> Plan | None:
    """Return the part of a plan that tells whether a model knows its records; None for prose alone.

    It has the first method and the lengths up to the training length, whose answers the study takes
    over, or else that length.
    """
    if not any(getattr(plan, name) for name in plan.record_fields):
        return None
    multiples = tuple(multiple for multiple in plan.multiples if multiple <= 1) or (1.0,)
    return replace(
        plan, methods=plan.methods[:1], multiples=multiples, lengths=None, prose_windows=0
    )


def check_study(model: Any, tokenizer: Any, folder: Any) -> None:
    """Refuse a wrong model, tokenizer or folder of answers before any work."""
    for method in ("named_parameters", "get_output_embeddings"):
        if isinstance(model, type) or not callable(getattr(model, method, None)):
            got = _checks.briefly(model)
            raise TypeError(f"model must be a decoder that na.patch takes, got {got}")
    _checks.tokenizer(tokenizer)
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"path must be a folder, got {folder!r}")
    with _files.naming("path", "a folder that can be written"):
        _files.writable_folder(folder)


def commands(plan: Plan, name: str) -> dict[str, dict[str, str]]:
    """Return the commands that repeat the answers, by method and then by task."""
    return {
        method: {
            task: harness.command_line(
                name, method, plan.train_length, f"ntk_alibi_{task}", made_from
            )
            for task, made_from in plan.tasks.items()
        }
        for method in plan.methods
    }

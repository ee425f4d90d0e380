"""Our tasks, and functions that run lm-evaluation-harness with our model and tasks.

The harness has no entry points for models of other packages: importing
`ntk_alibi.evaluation.harness.model` registers ours.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import glob
import json
import logging
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import resources
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ntk_alibi import _files, _names
from ntk_alibi.evaluation.harness import stored_answers
from ntk_alibi.methods import Method
from ntk_alibi.models.loading import NANO_BLOOM, checkpoint_name

if TYPE_CHECKING:
    from ntk_alibi.evaluation.harness.model import StretchedLM

#: Keys of metadata that name the tokenizer with which records are made.
MODEL_KEYS = ("tokenizer", "pretrained")

#: Tags, each for several of our tasks.
TAGS = ("ntk_alibi_retrieval", "ntk_alibi_generated", "longeval")


def tasks_folder() -> Path:
    """Return the folder of our tasks' YAML files, for the harness's `--include_path`."""
    return Path(str(resources.files("ntk_alibi.evaluation.harness") / "tasks"))


def task_names() -> list[str]:
    """Return the names of our tasks."""
    return sorted(path.stem for path in tasks_folder().glob("*.yaml"))


def metadata_keys(task: str) -> list[str] | None:
    """Return the keys of metadata that a task of ours reads; None for other tasks.

    They are the parameters of the function that makes its data, but for those that the task sets.
    """
    if task not in (*task_names(), *TAGS):
        return None
    from ntk_alibi.evaluation.harness import datasets, local_files

    made_by: Any = local_files.cases
    if task.startswith("ntk_alibi_"):
        made_by = datasets.prose if task.startswith("ntk_alibi_prose") else datasets.retrieval
    fixed = {"kind", "size", "stride" if task.endswith("_sliding") else ""}
    fixed |= {"questions"} if task.endswith("_generated") else set()
    parameters = signature(made_by).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in fixed]


def check_metadata(tasks: Collection[str], metadata: Mapping[str, Any]) -> None:
    """Refuse a key of metadata that no task reads, if all tasks are ours.

    The harness passes all keys to all tasks.
    """
    ours = (*task_names(), *TAGS)
    named = [name for task in tasks for name in fnmatch.filter(ours, task) or [task]]
    keys = [metadata_keys(name) for name in named]
    if keys and None not in keys:
        read = [*dict.fromkeys(key for of_task in keys for key in of_task or ()), *MODEL_KEYS]
        for key in metadata:
            if key not in read:
                raise ValueError(
                    f"metadata of these tasks must have keys of {', '.join(read)}, got {key!r}"
                    f"{_names.did_you_mean(key, read)}"
                )


def command_line(
    model: str, method: str, train_length: int, task: str, metadata: dict[str, Any]
) -> str:
    """Return the command that runs a task with a method.

    Args:
        model: name of the model.
        method: name of the method.
        train_length: training length of the model.
        task: name of the task.
        metadata: metadata of the task.
    """
    settings = f"pretrained={model},method={method},train_length={train_length}"
    words = ["--model", "ntk_alibi", "--model_args", settings, "--tasks", task]
    words += ["--metadata", json.dumps(metadata)]
    return _files.command_line(["ntk-alibi", "lm-eval", *words])


def main(arguments: Sequence[str]) -> None:
    """Run the harness's command line with our model and our tasks available."""
    from lm_eval._cli import HarnessCLI
    from lm_eval.utils import setup_logging

    from ntk_alibi.evaluation.harness import model  # noqa: F401

    setup_logging()
    command, before = HarnessCLI(), sys.argv
    sys.argv = ["lm-eval", *arguments]
    try:
        options = command.parse_args()
        if options.command == "run":
            prepare(options)
        with _harness_errors():
            command.execute(options)
    finally:
        sys.argv = before


def prepare(options: argparse.Namespace) -> None:
    """Check options of the harness's `run` before any work, and add our tasks and the tokenizer.

    The harness only logs that it could not write results, and prints a traceback for a damaged
    cache. Tasks that load a tokenizer, such as RULER's, would look for nano-bloom on the hub. A
    configuration file stays as it is, since `--metadata` would replace its metadata.
    """
    tasks, metadata = options.tasks or [], options.metadata or {}
    check_metadata(tasks, metadata)
    if options.output_path is not None:
        path = Path(options.output_path)
        with _files.naming("--output_path", "a folder that can be written"):
            _files.writable_folder(path.parent if path.suffix == ".json" else path)
    if options.use_cache is not None:
        path = Path(options.use_cache)
        with _files.naming("--use_cache", "a path in a folder that can be written"):
            folder = _files.writable_folder(path.parent)
        for answers in folder.glob(f"{glob.escape(path.name)}_rank*.db"):
            stored_answers.count_answers(answers)
    if tasks and options.include_path is None:
        options.include_path = str(tasks_folder())
    settings = {**(options.model_args or {}), **metadata}
    embedded = options.model == "ntk_alibi" and settings.get("pretrained") in (None, NANO_BLOOM)
    if embedded and options.config is None and "tokenizer" not in settings:
        options.metadata = {"tokenizer": checkpoint_name(settings.get("pretrained")), **metadata}


@contextlib.contextmanager
def _harness_errors() -> Iterator[None]:
    """Turn assertions, by which the harness checks settings, into ValueErrors.

    An error of a missing package names the harness's extras.
    """
    try:
        yield
    except ImportError as error:
        advice = "this task may need pip install 'lm_eval[ruler]' or 'lm_eval[longbench]'"
        raise ImportError(f"{error}; {advice}") from error
    except AssertionError as error:
        raise ValueError(str(error)) from error


def load_tasks(names: Sequence[str], metadata: dict[str, Any]) -> dict[str, Any]:
    """Load tasks of ours by name.

    Args:
        names: names of the tasks.
        metadata: arguments of the functions that make the data of the tasks.
    """
    from lm_eval.tasks import TaskManager

    manager = TaskManager(
        include_path=str(tasks_folder()), include_defaults=False, metadata=metadata
    )
    with quiet(), _harness_errors():
        loaded: dict[str, Any] = manager.load(list(names))["tasks"]
    return loaded


def answers(
    lm: StretchedLM, methods: Iterable[Method], tasks: Any, folder: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Answer tasks with each method, and leave the model unpatched.

    Returns:
        The samples by method and task, and the settings of the model by method.
    """
    samples, settings = {}, {}
    try:
        for method in methods:
            lm.stretch(method)
            settings[method.name] = lm.get_model_info()
            cache = folder / f"{method.name.replace(':', '-')}-{lm.digest}"
            samples[method.name] = answer(lm, tasks, cache)["samples"]
    finally:
        lm.release()
    return samples, settings


def answer(lm: StretchedLM, tasks: Any, cache: Path | None = None) -> dict[str, Any]:
    """Evaluate tasks with the harness, and return its results and all samples.

    Several processes share the documents; all return the results that the first one collects.

    Args:
        lm: the model, patched by its method.
        tasks: what `load_tasks` returns.
        cache: path where the harness stores each answer and looks for stored ones; each model and
            method needs another.

    Returns:
        {"results": metrics of each task, "samples": samples of each task}.

    Raises:
        ValueError: a task has fewer documents than there are processes.
    """
    from accelerate.utils import broadcast_object_list
    from lm_eval.evaluator import evaluate

    if lm.world_size > 1:
        for name, task in tasks.items():
            if (documents := len(task.eval_docs)) < lm.world_size:
                raise ValueError(
                    f"{name} must have a document for each of the {lm.world_size} processes, got "
                    f"{documents}"
                )
    with quiet(), _harness_errors(), stored_answers.kept(lm, cache) as model:
        # None in all processes but the first.
        output = evaluate(model, {"tasks": tasks}, bootstrap_iters=0)
    selected = [output and {key: output[key] for key in ("results", "samples")}]
    results: dict[str, Any] = broadcast_object_list(selected)[0]
    return results


def is_first_process() -> bool:
    """Wait for all processes of a job; return whether this one prints and cleans up."""
    from accelerate import PartialState

    state = PartialState()
    state.wait_for_everyone()
    return bool(state.is_main_process)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide messages of the harness but errors, and its progress bars but the model's."""
    import lm_eval.api.model
    import lm_eval.api.task
    from tqdm import tqdm

    # sqlitedict logs what it raises at its next call.
    levels = {"lm_eval": logging.ERROR, "sqlitedict": logging.CRITICAL}
    loggers = {logging.getLogger(name): level for name, level in levels.items()}
    before = {logger: logger.level for logger in loggers}
    modules = (lm_eval.api.model, lm_eval.api.task)
    for logger, level in loggers.items():
        logger.setLevel(level)
    for module in modules:
        module.tqdm = partial(tqdm, disable=True)
    try:
        yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)
        for module in modules:
            module.tqdm = tqdm

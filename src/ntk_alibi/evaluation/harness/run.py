"""The way into lm-evaluation-harness, which has no entry points for models of others.

Importing `ntk_alibi.evaluation.harness.model` registers our model; after that the harness's own
command line and functions find it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ntk_alibi.evaluation import checks

if TYPE_CHECKING:
    from ntk_alibi.evaluation.harness.model import StretchedLM


def cache_file(lm: StretchedLM, folder: Path) -> Path:
    """Where the harness keeps a method's answers; another model's are elsewhere."""
    weights = float(sum(p.detach().double().sum() for p in lm.model.parameters())).hex()
    info = json.dumps([weights, lm.get_model_info()], default=str, sort_keys=True)
    digest = hashlib.sha256(info.encode()).hexdigest()[:16]
    return folder / f"{lm.method.name.replace(':', '-')}-{digest}"


def metadata_argument(metadata: dict[str, Any]) -> list[str]:
    """Metadata as arguments of the harness's command line."""
    return ["--metadata", json.dumps(metadata)] if metadata else []


def tasks_path() -> Path:
    """The folder of the tasks' YAML files, for `--include_path` of the harness."""
    return Path(str(resources.files("ntk_alibi.evaluation.harness") / "tasks"))


def main(arguments: Sequence[str]) -> None:
    """The harness's command line with our model and our tasks known to it."""
    from lm_eval.__main__ import cli_evaluate

    from ntk_alibi.evaluation.harness import model  # noqa: F401

    before = sys.argv
    sys.argv = ["lm-eval", *with_our_tasks(arguments)]
    try:
        cli_evaluate()
    finally:
        sys.argv = before


def with_our_tasks(arguments: Sequence[str]) -> list[str]:
    """The arguments, and where our tasks are, unless the user names a folder of their own."""
    takes_tasks = any(a in ("--tasks", "-t") or a.startswith("--tasks=") for a in arguments)
    names_folder = any(a.startswith("--include_path") for a in arguments)
    if not takes_tasks or names_folder:
        return list(arguments)
    return [*arguments, "--include_path", str(tasks_path())]


def load_tasks(names: Sequence[str], metadata: dict[str, Any], *, all_known: bool = False) -> Any:
    """Tasks of ours as the harness's evaluate() takes them.

    Args:
        names: of tasks.
        metadata: what their data are made from.
        all_known: whether the harness's own are wanted too, which takes it seconds to look through.
    """
    from lm_eval.tasks import TaskManager

    manager = TaskManager(
        include_path=str(tasks_path()), include_defaults=all_known, metadata=metadata
    )
    return manager.load(list(names))


def answer(lm: StretchedLM, tasks: Any, cache: Path | None = None) -> dict[str, Any]:
    """What the harness's evaluate() makes of the tasks: its results and all single samples.

    Several processes share out the documents, and all of them get what the first has collected.

    Args:
        lm: stretched as wanted.
        tasks: from `load_tasks`.
        cache: the harness keeps each answer there as it comes, and does not ask for it again. It
            does not look at the model, so the name must tell models and methods apart.

    Returns:
        {"results": metrics of each task, "samples": samples of each task}.

    Raises:
        ValueError: a task has fewer documents than there are processes.
    """
    from accelerate.utils import broadcast_object_list
    from lm_eval.evaluator import evaluate

    if lm.world_size > 1:
        for name, task in tasks["tasks"].items():
            checks.enough_documents(name, len(task.eval_docs), lm.world_size)
    with quiet(), _cached(lm, cache) as model:
        found = evaluate(model, tasks, bootstrap_iters=0)  # None in all processes but the first
    wanted = [found and {key: found[key] for key in ("results", "samples")}]
    results: dict[str, Any] = broadcast_object_list(wanted)[0]
    return results


@contextlib.contextmanager
def _cached(lm: StretchedLM, cache: Path | None) -> Iterator[Any]:
    """The model behind the harness's cache."""
    from lm_eval.api.model import CacheHook, CachingLM

    from ntk_alibi.evaluation.harness.answer_file import AnswerFile

    if cache is None:
        yield lm
        return
    cached = CachingLM(lm, f"{cache}_rank{lm.rank}.db")
    cached.dbdict.close()
    cached.dbdict = AnswerFile(cached.cache_db)
    lm.set_cache_hook(cached.get_cache_hook())
    try:
        yield cached
    finally:
        cached.dbdict.close()
        lm.set_cache_hook(CacheHook(None))


def is_first_process() -> bool:
    """Whether this process, of those that share a job, is the one that prints and tidies up.

    It waits until all have come so far.
    """
    from accelerate import PartialState

    state = PartialState()
    state.wait_for_everyone()
    return bool(state.is_main_process)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leave of the harness's messages only errors, and of its progress bars only the model's."""
    import lm_eval.api.model
    import lm_eval.api.task
    from tqdm import tqdm

    logger = logging.getLogger("lm_eval")
    level, modules = logger.level, (lm_eval.api.model, lm_eval.api.task)
    logger.setLevel(logging.ERROR)
    for module in modules:
        module.tqdm = partial(tqdm, disable=True)
    try:
        yield
    finally:
        logger.setLevel(level)
        for module in modules:
            module.tqdm = tqdm

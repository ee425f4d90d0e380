"""The way into lm-evaluation-harness, which has no entry points for models of others.

Importing `ntk_alibi.evaluation.language_model` registers our model; after that the harness's own
command line and functions find it.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ntk_alibi.evaluation.language_model import StretchedLM


def tasks_path() -> Path:
    """The folder of the tasks' YAML files, for `--include_path` of the harness."""
    return Path(str(resources.files("ntk_alibi.evaluation") / "harness_tasks"))


def main(arguments: Sequence[str]) -> None:
    """The harness's command line with our model and our tasks known to it."""
    from lm_eval.__main__ import cli_evaluate

    from ntk_alibi.evaluation import language_model  # noqa: F401

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


def answer(lm: StretchedLM, tasks: Any, cache: Path | None = None) -> dict[str, Any] | None:
    """What the harness's evaluate() makes of the tasks, with all single samples.

    Args:
        lm: stretched as wanted.
        tasks: from `load_tasks`.
        cache: the harness keeps each answer there as it comes, and does not ask for it again. It
            does not look at the model, so the name must tell models and methods apart.

    Returns:
        The harness's results; None in all processes but the first.
    """
    from lm_eval.api.model import CacheHook, CachingLM
    from lm_eval.evaluator import evaluate

    from ntk_alibi.evaluation.answer_file import AnswerFile

    with quiet():
        if cache is None:
            results: dict[str, Any] | None = evaluate(lm, tasks, bootstrap_iters=0)
            return results
        cached = CachingLM(lm, f"{cache}_rank{lm.rank}.db")
        cached.dbdict.close()
        cached.dbdict = AnswerFile(cached.cache_db)
        lm.set_cache_hook(cached.get_cache_hook())
        try:
            results = evaluate(cached, tasks, bootstrap_iters=0)
        finally:
            cached.dbdict.close()
            lm.set_cache_hook(CacheHook(None))
        return results


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

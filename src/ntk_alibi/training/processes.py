"""Work on several models at a time, in processes of one thread each."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

import torch

from ntk_alibi._runtime import set_num_threads

Item = TypeVar("Item")
Result = TypeVar("Result")


def each_in_a_process(
    work: Callable[[Item], Result], items: Sequence[Item], processes: int
) -> Iterator[Result]:
    """Yield work(item) for each item, in the order in which they finish.

    The processes end when this one does, also if it is killed.

    Args:
        work: a function that can be pickled.
        items: values that can be pickled.
        processes: number of processes.

    Raises:
        ChildProcessError: a process was killed.
    """
    if not items:
        return
    # spawn: OpenMP has no threads in a forked child
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_prepare) as pool:
        working = [pool.submit(work, item) for item in items]
        try:
            for done in as_completed(working):
                yield done.result()
        except BrokenProcessPool:
            raise ChildProcessError(
                "a process was killed, perhaps for lack of memory; run the same command again to "
                "continue, with fewer --processes"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _prepare() -> None:
    torch.set_num_threads(1)
    set_num_threads(1)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """Wait for the parent's end, and end: two runs on one folder would overwrite each other."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

"""Work on several models at a time, in processes of one thread each."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import TypeVar

import torch

from ntk_alibi._runtime import set_num_threads

Item = TypeVar("Item")
Result = TypeVar("Result")


def each_in_a_process(
    work: Callable[[Item], Result], items: Sequence[Item], processes: int
) -> Iterator[Result]:
    """Yield work(item) for each item, in the order in which they finish.

    The processes end with the last item, an error, or this process, also if it is killed.

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
    reader, writer = context.Pipe(duplex=False)
    with ProcessPoolExecutor(processes, context, _prepare, (reader,)) as pool:
        try:
            for done in as_completed([pool.submit(work, item) for item in items]):
                yield done.result()
        except BrokenProcessPool:
            raise ChildProcessError(
                "a process was killed, perhaps for lack of memory; run the same command again to "
                "continue, with fewer --processes"
            ) from None
        finally:
            writer.close()
            reader.close()


def _prepare(parent: Connection) -> None:
    torch.set_num_threads(1)
    set_num_threads(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Connection) -> None:
    """End this process when the parent closes its end of a pipe, by an error or by its own end.

    Two runs on one folder would overwrite each other.
    """
    parent.poll(None)
    os._exit(1)

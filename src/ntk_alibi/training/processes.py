"""Work on several models at a time, in processes of one thread each."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import torch

from ntk_alibi._runtime import set_num_threads

Item = TypeVar("Item")
Result = TypeVar("Result")


def each_in_a_process(
    work: Callable[[Item], Result], items: Sequence[Item], processes: int
) -> Iterator[Result]:
    """Yield work(item) for each item, in the order in which they finish.

    Args:
        work: a function that can be pickled.
        items: values that can be pickled.
        processes: number of processes.
    """
    if not items:
        return
    # spawn: OpenMP has no threads in a forked child
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(partial(_in_one_thread, work), items)


def _in_one_thread(work: Callable[[Item], Result], item: Item) -> Result:
    torch.set_num_threads(1)
    set_num_threads(1)
    return work(item)

"""Start gloo processes that run one function each, and collect what they return."""

from __future__ import annotations

import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch import multiprocessing as mp


def run(size: int, work: Callable[..., Any], *arguments: Any, seconds: float = 120) -> list[Any]:
    """Return work(rank, *arguments) of each of `size` processes in one process group.

    Args:
        size: number of processes.
        work: a function of a module that processes can import.
        arguments: values that can be pickled.
        seconds: time-out of the process group.

    Raises:
        AssertionError: a process failed; the message holds its traceback.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_process, (size, folder, seconds, work, arguments), nprocs=size)
        results = [pickle.loads((Path(folder) / f"{r}").read_bytes()) for r in range(size)]
    for result in results:
        assert not isinstance(result, _Failure), f"\n{result.text}"
    return results


class _Failure:
    def __init__(self, text: str) -> None:
        self.text = text


def _process(rank: int, size: int, folder: str, seconds: float, work: Any, arguments: Any) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=seconds),
    )
    try:
        result = work(rank, *arguments)
    except BaseException:
        result = _Failure(traceback.format_exc())
    Path(folder, f"{rank}").write_bytes(pickle.dumps(result))
    distributed.destroy_process_group()

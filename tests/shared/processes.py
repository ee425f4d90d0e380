"""Gloo processes that run functions, and return what they return.

They are forked from a server that has imported what most of them need, which takes longer than most
of what they compute.
"""

from __future__ import annotations

import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch import multiprocessing as mp

#: Modules that the server imports. It does not know the folders of tests.
IMPORTED = [
    "ntk_alibi.integrations",
    "torch._dynamo",
    "torch.distributed.tensor",
    *(f"transformers.models.{x}.modeling_{x}" for x in ("bloom", "falcon", "mpt")),
]


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
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    task = pickle.dumps((work, arguments))
    processes, pipes = [], []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for rank in range(size):
                ours, pipe = context.Pipe()
                group = {
                    "init_method": f"file://{folder}/store",
                    "rank": rank,
                    "world_size": size,
                    "timeout": timedelta(seconds=seconds),
                }
                process = context.Process(target=_serve, args=(pipe, task, group), daemon=True)
                process.start()
                pipe.close()  # so that the end of the process is the end of the pipe
                processes.append(process)
                pipes.append(ours)
            results = [pickle.loads(pipe.recv_bytes()) for pipe in pipes]
        failures = [x.text for x in results if isinstance(x, _Failure)]
    except EOFError:
        failures = ["a process ended before it returned a result"]
    finally:
        for process in processes:
            process.kill()
            process.join()
    assert not failures, "\n" + "\n".join(failures)
    return results


class _Failure:
    def __init__(self, text: str) -> None:
        self.text = text


def _serve(pipe: Any, task: bytes, group: dict[str, Any]) -> None:
    """Send the pickled result of a task, or its failure."""
    torch.set_num_threads(1)
    try:
        work, arguments = pickle.loads(task)
        distributed.init_process_group("gloo", **group)
        try:
            distributed.barrier()  # no rank may be done while another still connects to it
            result = pickle.dumps(work(group["rank"], *arguments))
        finally:
            distributed.destroy_process_group()
    except BaseException:
        result = pickle.dumps(_Failure(traceback.format_exc()))
    pipe.send_bytes(result)

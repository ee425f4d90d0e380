"""Gloo processes that run functions, and return what they return.

Starting a process and importing torch and transformers take longer than most of what it is to
compute. Processes therefore stay for the next call of `run`, which gives them a new process group.
"""

from __future__ import annotations

import atexit
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch import multiprocessing as mp


class Worker:
    """A process that runs functions, each in a process group of its own; one only if `once`."""

    def __init__(self, *, once: bool = False) -> None:
        context = mp.get_context("spawn")
        self._pipe, pipe = context.Pipe()
        self.process = context.Process(target=_serve, args=(pipe, once), daemon=True)
        self.process.start()
        pipe.close()  # so that the end of the process is the end of the pipe

    def send(self, *task: Any) -> None:
        self._pipe.send_bytes(pickle.dumps(task))

    def receive(self) -> Any:
        return pickle.loads(self._pipe.recv_bytes())

    def end(self) -> None:
        self._pipe.close()
        self.process.kill()
        self.process.join()


_WORKERS: list[Worker] = []


def run(
    size: int, work: Callable[..., Any], *arguments: Any, seconds: float = 120, own: bool = False
) -> list[Any]:
    """Return work(rank, *arguments) of each of `size` processes in one process group.

    Args:
        size: number of processes.
        work: a function of a module that processes can import.
        arguments: values that can be pickled.
        seconds: time-out of the process group.
        own: whether to run on processes of this call, each of which ends when its work is done:
            what loses ranks, or leaves state behind in its process, needs them.

    Raises:
        AssertionError: a process failed; the message holds its traceback.
    """
    workers: list[Worker] = [] if own else _WORKERS
    while len(workers) < size:
        workers.append(Worker(once=own))
    used = workers[:size]
    well = False
    try:
        with tempfile.TemporaryDirectory() as folder:
            for rank, worker in enumerate(used):
                worker.send(rank, size, folder, seconds, work, arguments)
            results = [worker.receive() for worker in used]
        failures = [x.text for x in results if isinstance(x, _Failure)]
        well = not failures
    except EOFError:
        failures = ["a process ended before it returned a result"]
    finally:
        if own or not well:  # what failed may have left anything behind
            end(workers)
    assert not failures, "\n" + "\n".join(failures)
    return results


def end(workers: list[Worker]) -> None:
    while workers:
        workers.pop().end()


atexit.register(end, _WORKERS)


class _Failure:
    def __init__(self, text: str) -> None:
        self.text = text


def _serve(pipe: Any, once: bool) -> None:
    """Run tasks until the pipe ends, or one task."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    environment = dict(os.environ)
    while True:
        try:
            task = pipe.recv_bytes()
        except EOFError:
            return
        pipe.send_bytes(_outcome(task))
        if once:
            return
        os.environ.clear()
        os.environ.update(environment)


def _outcome(task: bytes) -> bytes:
    """Return the pickled result of a task, or its failure."""
    try:
        rank, size, folder, seconds, work, arguments = pickle.loads(task)
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=seconds),
        )
        try:
            distributed.barrier()  # no rank may be done while another still connects to it
            result = pickle.dumps(work(rank, *arguments))
        finally:
            distributed.destroy_process_group()
    except BaseException:
        result = pickle.dumps(_Failure(traceback.format_exc()))
    return result

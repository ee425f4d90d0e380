"""The ring and ours between two network namespaces of one machine, with a limited link.

`python -m benchmarks.distributed.limited_link RANK SETTINGS` is one of the two processes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from benchmarks.distributed.measured import (
    HEAD_DIM,
    MIB,
    SCALINGS,
    RefusalError,
    Settings,
    refuse_lengths,
)
from benchmarks.distributed.problem import Problem
from benchmarks.distributed.ways import WAYS
from benchmarks.distributed.wire import Wire
from benchmarks.problems import threads
from ntk_alibi.cli.timing import interleaved
from ntk_alibi.evaluation.report.markdown import describe_machine, table

NAMES = ("ntkalibi0", "ntkalibi1")  # of namespaces, and of the interfaces in them
ADDRESSES = ("10.213.77.1", "10.213.77.2")
PORT = 29577
COMPARED = ("ring", "ours")

#: Rates of the link by name, with the bytes that tbf sends at once. A burst must hold what arrives
#: between two ticks of the kernel's clock.
RATES = {"100 Mbit/s": ("100mbit", "128kb"), "1 Gbit/s": ("1gbit", "1mb"), "not limited": None}


def sections(settings: Settings) -> list[str]:
    """Return the name of the section that `run` yields."""
    return ["distributed-link"]


def run(settings: Settings) -> Iterator[tuple[str, str]]:
    """Measure, and yield the name and the text of the section.

    Raises:
        RefusalError: the machine allows no namespaces, or no limit; a process failed.
    """
    refuse_lengths(settings, 2)
    found: dict[tuple[str, str], dict[str, Any]] = {}  # by problem and rate
    for name, limit in RATES.items():
        with _namespaces():
            if limit:
                for namespace in NAMES:
                    _limit(namespace, *limit)
            for problem, results in _in_namespaces(settings).items():
                found[problem, name] = results
    head = (
        f"{describe_machine()}; two processes in two network namespaces, whose link tc limits in "
        f"each direction (tbf), {settings.heads} heads, D = {HEAD_DIM}, one thread each; medians "
        f"of {settings.rounds} interleaved rounds. Interfaces counted the "
        "bytes, with headers of TCP and IP."
    )
    rows = [
        [
            f"{problem}, {name}",
            *(f"{results[way]['seconds']:.2f}" for way in COMPARED),
            f"{results['ring']['seconds'] / results['ours']['seconds']:.1f}",
            *(f"{results[way][kind] / MIB:.1f}" for way in COMPARED for kind in KINDS),
        ]
        for (problem, name), results in found.items()
    ]
    sizes = [f"MiB {kind}, {way}" for way in COMPARED for kind in KINDS]
    yield (
        sections(settings)[0],
        head + "\n\n" + table(["", "ring, s", "ours, s", "ratio", *sizes], rows),
    )


KINDS = ("counted", "on interfaces")


def _command(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except OSError as error:
        raise RefusalError(f"{words[0]} must be installed and allowed, got: {error}") from None
    if done.returncode:
        raise RefusalError(f"this machine refused {' '.join(words)!r}: {done.stderr.strip()}")


@contextmanager
def _namespaces() -> Iterator[None]:
    """Make two network namespaces with a link between them, and remove them in the end."""
    with ExitStack() as stack:
        for name in NAMES:
            _command("ip", "netns", "add", name)
            stack.callback(_command, "ip", "netns", "del", name)
        first, second = NAMES
        link = ("link", "add", first, "netns", first, "type", "veth")
        _command("ip", *link, "peer", "name", second, "netns", second)
        for name, address in zip(NAMES, ADDRESSES, strict=True):
            _command("ip", "-n", name, "addr", "add", f"{address}/24", "dev", name)
            for device in (name, "lo"):
                _command("ip", "-n", name, "link", "set", device, "up")
        yield


def _limit(namespace: str, rate: str, burst: str) -> None:
    limit = ("root", "tbf", "rate", rate, "burst", burst, "latency", "100ms")
    _command("ip", "netns", "exec", namespace, "tc", "qdisc", "add", "dev", namespace, *limit)


def _in_namespaces(settings: Settings) -> dict[str, Any]:
    """Return what the two processes found, by problem and way."""
    words = json.dumps([settings.lengths, settings.heads, settings.rounds])
    program = [sys.executable, "-m", "benchmarks.distributed.limited_link"]
    processes = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, *program, str(rank), words],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "GLOO_SOCKET_IFNAME": name},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, name in enumerate(NAMES)
    ]
    texts = [process.communicate()[0] for process in processes]
    for process in processes:
        if process.returncode:
            raise RefusalError(f"a process between namespaces failed: code {process.returncode}")
    found: dict[str, Any] = json.loads(texts[0].splitlines()[-1])
    return found


def _on_interface() -> int:
    """Return the bytes that this namespace's interface has sent."""
    lines = Path("/proc/self/net/dev").read_text()
    counted = re.search(rf"^\s*(?:{'|'.join(NAMES)}):(.*)$", lines, re.MULTILINE)
    assert counted, lines
    return int(counted.group(1).split()[8])


def main() -> None:
    """Measure as one of the two processes; the first prints what both found."""
    rank = int(sys.argv[1])
    lengths, heads, rounds = json.loads(sys.argv[2])
    distributed.init_process_group(
        "gloo", init_method=f"tcp://{ADDRESSES[0]}:{PORT}", rank=rank, world_size=2
    )
    found = {}
    with threads(1), torch.inference_mode():
        for length in lengths:
            for scaling in SCALINGS:
                problem = Problem(length, heads, HEAD_DIM, torch.float32, scaling)
                found[problem.name] = _measured(problem, rank, rounds)
    if rank == 0:
        print(json.dumps(found))
    distributed.destroy_process_group()


def _measured(problem: Problem, rank: int, rounds: int) -> dict[str, dict[str, float]]:
    parts = problem.parts(rank, 2)

    def call(name: str) -> Any:
        def timed() -> None:
            WAYS[name](problem, *parts)
            distributed.barrier()  # the slower process counts

        return timed

    seconds = interleaved(
        {name: call(name) for name in COMPARED}, rounds, 0.0, before_turn=distributed.barrier
    )
    results = {}
    for name in COMPARED:
        before = _on_interface()
        with Wire(*parts) as wire:
            WAYS[name](problem, *parts)
        # The last bytes may still wait in the queue; the other process has read all of them
        # before it passes the barrier.
        distributed.barrier()
        sizes = torch.tensor([wire.traffic.bytes_sent, _on_interface() - before])
        distributed.all_reduce(sizes)
        results[name] = {"seconds": seconds[name], **dict(zip(KINDS, sizes.tolist(), strict=True))}
    return results


if __name__ == "__main__":
    main()

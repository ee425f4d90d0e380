"""Benchmark of peak memory beyond the inputs; each candidate runs in a separate process.

`python -m benchmarks.memory NUMBER LENGTH` runs one candidate. It reads the high-water mark of
resident memory from /proc, because getrusage's survives exec() and would be the parent's.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks import problems
from benchmarks.prefill import CANDIDATES, thread_counts
from benchmarks.problems import Case
from ntk_alibi.cli.timing import Call
from ntk_alibi.evaluation.report.markdown import table

LENGTH, HEAD_DIM = 8192, 64
MOST_BYTES = 8e9  # a candidate that needs more is left out
SECONDS = 6  # that one process takes, for the estimate


def measure(length: int) -> dict[str, Any]:
    """Return bytes of each candidate that works here; None for those above `MOST_BYTES`."""
    case = _case(length)
    sizes: dict[str, int | None] = {}
    for number, candidate in enumerate(CANDIDATES):
        if not candidate.importable() or case.dtype not in candidate.dtypes:
            continue
        if candidate.bytes_per_pair * case.pairs > MOST_BYTES:
            sizes[candidate.name] = None
        elif (size := _in_child(number, length)) is not None:
            sizes[candidate.name] = size
    inputs = 3 * 4 * problems.HEADS * length * HEAD_DIM
    return {"length": length, "head_dim": HEAD_DIM, "inputs": inputs, "bytes": sizes}


def estimate() -> float:
    """Return roughly how many seconds `measure` takes."""
    return SECONDS * len(CANDIDATES)


def markdown(result: dict[str, Any]) -> str:
    """Return the table of one result."""
    rows = [
        [
            name,
            f"not run, more than {MOST_BYTES / 1e6:.0f}" if size is None else f"{size / 1e6:.0f}",
        ]
        for name, size in result["bytes"].items()
    ]
    title = (
        f"**L = {result['length']}, D = {result['head_dim']}, float32**; the inputs have "
        f"{result['inputs'] / 1e6:.0f} MB"
    )
    return f"{title}\n\n{table(['', 'MB beyond the inputs'], rows)}"


def _case(length: int) -> Case:
    return Case(length, HEAD_DIM, torch.float32, thread_counts()[-1])


def _in_child(number: int, length: int) -> int | None:
    command = [sys.executable, "-m", "benchmarks.memory", str(number), str(length)]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode:
        print(f"  left out: {CANDIDATES[number].name}: {done.stderr[-300:]}", file=sys.stderr)
        return None
    return int(done.stdout.split()[-1])


def main() -> None:
    """Measure one candidate in this process."""
    number, length = (int(word) for word in sys.argv[1:])
    candidate = CANDIDATES[number]
    with problems.threads(_case(length).threads):
        candidate.prepare(
            problems.build(_case(512))
        )()  # loads libraries, whose memory does not count
        problem = problems.build(_case(length))
        print(peak_beyond_now(candidate.prepare(problem)))


def peak_beyond_now(call: Call, *, warm_up: bool = True) -> int:
    """Return the peak bytes of a call, with `warm_up` the second one, beyond those held before."""
    before = resident()
    if warm_up:
        call()  # compilers need memory in the first call only
    return peak(call) - before


def peak(call: Call) -> int:
    """Return the most bytes that this process holds during a call."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    call()
    return resident("VmHWM")


def resident(field: str = "VmRSS") -> int:
    """Return the bytes that this process holds, or with VmHWM the most since the last reset."""
    line = re.search(rf"{field}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert line, field
    return 1024 * int(line.group(1))


if __name__ == "__main__":
    main()

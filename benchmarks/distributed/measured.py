"""Bytes, balance and memory of the ways, counted in the processes that torchrun has started."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

import ntk_alibi as na
from benchmarks.distributed.problem import Problem
from benchmarks.distributed.ways import WAYS
from benchmarks.distributed.wire import Traffic, Wire, speeds_header, tokens_per_second
from benchmarks.memory import peak_beyond_now
from benchmarks.problems import threads
from ntk_alibi.evaluation.report.markdown import describe_machine, table

SCALINGS = (None, na.NTK(4.0))
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
HEAD_DIM = 64
MIB = 2.0**20


class RefusalError(ValueError):
    """Options that do not fit, or something that this machine does not allow."""


@dataclass(frozen=True)
class Settings:
    """Options of the command line.

    Attributes:
        lengths: tokens of all processes together.
        heads: number of heads.
        latency: seconds that each message takes on a simulated link.
        rounds: number of timed calls on a limited link.
        dtypes: names of the dtypes to measure.
    """

    lengths: tuple[int, ...]
    heads: int
    latency: float
    rounds: int
    dtypes: tuple[str, ...] = tuple(DTYPES)

    @property
    def problems(self) -> list[Problem]:
        """All problems."""
        every = itertools.product(self.lengths, SCALINGS, self.dtypes)
        return [
            Problem(n, self.heads, HEAD_DIM, DTYPES[dtype], scaling) for n, scaling, dtype in every
        ]


@dataclass(frozen=True)
class Found:
    """The measurements of one way by one process.

    Attributes:
        traffic: bytes and messages.
        buffers: most bytes of tensors of collectives at one time.
        memory: peak of resident bytes beyond those held before.
        blocks: number of blocks of scores that were computed.
        error: greatest difference from our output; None where it was not compared.
    """

    traffic: Traffic
    buffers: int
    memory: int
    blocks: int
    error: float | None


#: What all processes found, by way.
Row = dict[str, list[Found]]


#: The sections of a number of processes, after its name.
SECTIONS = ("machine", "bytes", "balance", "memory", "speed")


def sections(settings: Settings) -> list[str]:
    """Return the names of the sections that `run` yields."""
    return [f"distributed-{os.environ.get('WORLD_SIZE')}-{name}" for name in SECTIONS]


def refuse_lengths(settings: Settings, size: int) -> None:
    """Refuse lengths that cannot be cut into the parts of `size` processes."""
    try:
        for problem in settings.problems:
            problem.own_length(size)
    except ValueError as error:
        raise RefusalError(str(error)) from None


def run(settings: Settings) -> Iterator[tuple[str, str]]:
    """Measure, and yield the names and the texts of the sections on the first process only.

    Raises:
        RefusalError: torchrun did not start this process; a length cannot be cut.
        RuntimeError: the ways do not compute the same.
    """
    if "WORLD_SIZE" not in os.environ:
        raise RefusalError(
            "this part runs on several processes: "
            "torchrun --nproc_per_node 2 -m benchmarks distributed"
        )
    size = int(os.environ["WORLD_SIZE"])
    if size < 2:
        raise RefusalError(f"this part needs at least 2 processes, got {size}")
    refuse_lengths(settings, size)
    distributed.init_process_group("gloo")
    try:
        with torch.inference_mode():
            rows = {x: measure(x, x.length == min(settings.lengths)) for x in settings.problems}
        if distributed.get_rank() == 0:
            yield from zip(sections(settings), texts(rows, settings), strict=True)
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


def measure(problem: Problem, compared: bool) -> Row:
    """Return what all processes found; Ulysses is left out where it cannot divide the heads.

    Args:
        problem: the problem.
        compared: whether to compare the outputs.
    """
    rank, size = distributed.get_rank(), distributed.get_world_size()
    parts = problem.parts(rank, size)
    with threads(1):
        expected = WAYS["ours"](problem, *parts) if compared else None
        row: Row = {}
        for name in names(problem.heads, size):
            found = _found(name, problem, parts, expected)
            every: list[Any] = [None] * size
            distributed.all_gather_object(every, found)
            row[name] = every
    if compared:
        _check(problem, row, _tolerance(problem, parts, size))
    return row


def names(heads: int, size: int) -> list[str]:
    """Return the names of the ways that can be taken."""
    return [name for name in WAYS if name != "Ulysses" or heads % size == 0]


def _found(
    name: str, problem: Problem, parts: tuple[torch.Tensor, ...], expected: torch.Tensor | None
) -> Found:
    wire, outputs = Wire(*parts), []

    def call() -> None:
        with wire:
            outputs.append(WAYS[name](problem, *parts))

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the way before left over would count as held
    memory = peak_beyond_now(call, warm_up=False)
    error = None
    if expected is not None:
        error = float((outputs[0].float() - expected.float()).abs().max())
    return Found(wire.traffic, wire.peak, memory, wire.blocks, error)


def _tolerance(problem: Problem, parts: tuple[torch.Tensor, ...], size: int) -> float:
    """Return a bound of the differences between outputs of two ways, equal on all processes.

    A score is off by at most (D + 24) 2^-24 of the product of norms, and an output by twice the
    greatest such error, relative to the greatest value; skipping takes 2 * 2^-24 more. bfloat16
    rounds weights and outputs to 8 bits, the output once for each part that continues another.
    """
    query, key, value = (x.float() for x in parts)
    own = [query.norm(dim=-1).max(), key.norm(dim=-1).max(), value.abs().max()]
    every = [torch.empty(3) for _ in range(size)]
    distributed.all_gather(every, torch.stack(own))
    longest_query, longest_key, largest = (float(x) for x in torch.stack(every).amax(0))
    scale = problem.head_dim**-0.5
    score = (problem.head_dim + 24) * 2.0**-24 * scale * longest_query * longest_key
    each = 2.0 * score + 2.0**-23
    if problem.dtype == torch.bfloat16:
        each += (size + 1) * 2.0**-8
    bound: float = 2.0 * each * largest
    return bound


def _check(problem: Problem, row: Row, tolerance: float) -> None:
    for name, every in row.items():
        error = max(found.error or 0.0 for found in every)
        if not error <= tolerance:
            raise RuntimeError(
                f"{name} and ours must differ by at most {tolerance:.1e} ({problem.name}), got "
                f"{error:.1e}"
            )


def texts(rows: dict[Problem, Row], settings: Settings) -> list[str]:
    """Return the texts of the sections: the machine, and all tables."""
    size = len(next(iter(rows.values()))["ours"])
    ways = names(settings.heads, size)
    head = (
        f"{describe_machine()}; {size} processes, gloo, {settings.heads} heads, D = {HEAD_DIM}; "
        "bytes, blocks and buffers are counted, not timed."
    )
    if "Ulysses" not in ways:
        head += f" Ulysses is left out: {size} processes do not divide {settings.heads} heads."
    return [
        head,
        _bytes_table(rows, ways),
        _balance_table(rows, ways),
        _memory_table(rows, ways),
        _time_table(rows, ways, settings.latency),
    ]


def _table(
    header: list[str], rows: dict[Problem, Row], cells: Callable[[Problem, Row], Any]
) -> str:
    """Return a table with a row for each problem."""
    lines = [[problem.name, *cells(problem, row)] for problem, row in rows.items()]
    return table(header, lines)


def _bytes_table(rows: dict[Problem, Row], ways: list[str]) -> str:
    """Return bytes of all processes together."""

    def cells(problem: Problem, row: Row) -> Iterator[str]:
        sent = {name: sum(x.traffic.bytes_sent for x in row[name]) for name in ways}
        about = sum(x.traffic.sent.get("all_gather", 0) for x in row["ours"])
        error = max((x.error for name in ways for x in row[name] if x.error is not None), default=0)
        yield from (f"{sent[name] / MIB:.1f}" for name in ways)
        yield f"{100 * sent['ours'] / sent['ring']:.1f} %"
        yield f"{about / MIB:.2f}"
        yield f"{error:.1e}" if error else ""

    last = ["ours / ring", "of it norms and descriptions", "greatest difference of outputs"]
    return _table(["MiB sent, all processes", *ways, *last], rows, cells)


def _balance_table(rows: dict[Problem, Row], ways: list[str]) -> str:
    """Return the greatest process relative to the mean, of bytes and of blocks of scores."""

    def cells(problem: Problem, row: Row) -> Iterator[str]:
        yield from (spread([x.traffic.bytes_sent for x in row[name]]) for name in ways)
        yield from (spread([x.blocks for x in row[name]]) for name in ways)

    header = [f"{what}, {name}" for what in ("bytes sent", "scores") for name in ways]
    return _table(["greatest process / mean", *header], rows, cells)


def _memory_table(rows: dict[Problem, Row], ways: list[str]) -> str:
    """Return the memory of the process that needs most."""

    def cells(problem: Problem, row: Row) -> Iterator[str]:
        yield from (f"{max(x.buffers for x in row[name]) / MIB:.1f}" for name in ways)
        yield from (f"{max(x.memory for x in row[name]) / MIB:.0f}" for name in ways)

    header = [f"{what}, {name}" for what in ("buffers", "resident") for name in ways]
    return _table(["MiB of a process", *header], rows, cells)


def _time_table(rows: dict[Problem, Row], ways: list[str], latency: float) -> str:
    """Return computed speeds of the exchange alone."""

    def cells(problem: Problem, row: Row) -> Iterator[str]:
        traffic = ([x.traffic for x in row[name]] for name in ways)
        return (tokens_per_second(problem.length, each, latency=latency) for each in traffic)

    return _table([speeds_header(latency), *ways], rows, cells)


def spread(counts: Sequence[int]) -> str:
    """Return the greatest count relative to the mean."""
    return f"{max(counts) * len(counts) / max(sum(counts), 1):.2f}"

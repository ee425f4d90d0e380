"""The benchmark of several processes: its counts, and that all ways compute the same."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.__main__ import main
from benchmarks.distributed import computed, limited_link, measured, ways, wire
from benchmarks.distributed.problem import Problem
from benchmarks.distributed.wire import Traffic, Wire
from torch import distributed

import ntk_alibi as na
from ntk_alibi.evaluation.report import markdown
from processes import run
from repository import ROOT

pytestmark = pytest.mark.slow  # of a program beside the package

PROBLEM = Problem(8192, 16, 16, torch.float32)
HALF = Problem(8192, 6, 16, torch.bfloat16, na.NTK(4.0))
SETTINGS = measured.Settings((8192,), 16, 50e-6, 1)


Rows = dict[Problem, measured.Row]


def both(rank: int) -> tuple[Rows, list[str]]:
    """Measure both problems as one of two processes, and then what is wrong."""
    with torch.inference_mode():
        return {x: measured.measure(x, compared=True) for x in (PROBLEM, HALF)}, wrong()


def wrong() -> list[str]:
    """Return what is said about a way that computes something else, and about uncounted bytes."""
    small = Problem(2048, 4, 16, torch.float32)
    said = []
    with pytest.MonkeyPatch.context() as changed:
        changed.setitem(ways.WAYS, "ring", lambda problem, *x: na.attention(*x, problem.bias))
        with pytest.raises(RuntimeError) as error:
            measured.measure(small, compared=True)
    said.append(str(error.value))
    with Wire(), pytest.raises(RuntimeError) as error:
        distributed.all_reduce(torch.zeros(3))
    said.append(str(error.value))
    with pytest.raises(ValueError, match="number of heads that the processes divide, got 3") as odd:
        ways.ulysses(Problem(2048, 3, 16, torch.float32), *[torch.zeros(1, 3, 1024, 16)] * 3)
    said.append(str(odd.value))
    return said


@pytest.fixture(scope="module")
def processes() -> list[tuple[Rows, list[str]]]:
    return run(2, both)


@pytest.fixture(scope="module")
def found(processes: list[tuple[Rows, list[str]]]) -> Rows:
    return processes[0][0]  # every process has the results of all


def sent(row: measured.Row, name: str) -> int:
    return sum(x.traffic.bytes_sent for x in row[name])


@pytest.mark.parametrize("problem", [PROBLEM, HALF])
def test_ours_sends_less_than_the_ring(problem: Problem, found: Rows) -> None:
    row = found[problem]
    keys_and_values = 2 * 8192 * problem.token_bytes
    # each process sends its half of keys and values, or halves of four tensors, to the other
    assert sent(row, "ring") == sent(row, "all-gather") == sent(row, "Ulysses") == keys_and_values
    # all that causality needs is half of a ring's bytes
    assert 0 < sent(row, "ours") < 0.4 * sent(row, "ring")
    for every in row.values():
        assert sum(x.traffic.bytes_sent - x.traffic.received for x in every) == 0


def test_buffers_and_scores_are_counted(found: Rows) -> None:
    row = found[PROBLEM]
    half = 8192 * PROBLEM.token_bytes  # keys and values of one process
    ring, gathered, ours = (max(x.buffers for x in row[n]) for n in ("ring", "all-gather", "ours"))
    assert ring == 2 * half  # what leaves and what arrives
    assert gathered == 3 * half  # its own and both copies
    assert 0 < ours < ring
    assert all(x.blocks > 0 for every in row.values() for x in every)
    assert row["ring"][0].blocks < row["ring"][1].blocks  # later tokens see more


def test_computed_bytes_are_those_that_travel(found: Rows) -> None:
    wanted = computed.blocks_wanted([PROBLEM], 2)[PROBLEM]
    travelled = [x.traffic for x in found[PROBLEM]["ours"]]
    for counted, expected in zip(travelled, computed.traffic(PROBLEM, 2, wanted), strict=True):
        # the descriptions that processes compare are left out
        assert 0 < counted.received - expected.received < 2048
        assert 0 < counted.sent["all_gather"] - expected.sent["norms"] < 2048
        assert counted.messages <= expected.messages


def test_tables(found: Rows) -> None:
    text = "\n\n".join(measured.texts(found, SETTINGS))
    assert text.count("\n| 8K, original, float32 | ") == 4
    assert "| MiB sent, all processes | ring | all-gather | Ulysses | ours | ours / ring | " in text
    odd = {PROBLEM: {name: every * 3 for name, every in found[PROBLEM].items()}}
    head = measured.texts(odd, SETTINGS)[0]
    assert "Ulysses is left out: 6 processes do not divide 16 heads" in head


def test_wrong_outputs_and_uncounted_bytes_are_errors(
    processes: list[tuple[Rows, list[str]]],
) -> None:
    for _, said in processes:
        assert said[0].startswith("ring and ours must differ by at most")
        assert said[1] == "all_reduce sends bytes that are not counted"
        assert said[2].startswith("Ulysses needs")


def test_time_on_a_link() -> None:
    process = Traffic({"isend": 125_000_000}, 250_000_000, 2)
    assert process.seconds(1e9, 0.5) == pytest.approx(3.0)
    assert wire.tokens_per_second(6000, [process], latency=0.5) == "2, 5, 6"


def test_more_processes_are_computed() -> None:
    ((name, text),) = computed.run(measured.Settings((4096,), 2, 50e-6, 1))
    assert name == "distributed-computed-2"
    assert "| 4K, 4, ntk:4 | 12 | heads do not divide | " in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "this part runs on several processes: torchrun --nproc_per_node 2"),
        (["--part", "computed", "--lengths", "1000"], "a length must be a multiple of 1024 times"),
        (["--lengths", "8192,-1"], "must be at least 1, got -1"),
        (["--latency", "inf"], "must be at least 0, got inf"),
        (["--heads", "x"], "argument --heads: must be a whole number, got 'x'"),
        (["--lengths", "8K"], "argument --lengths: must be a whole number, got '8K'"),
        (["--lengths", "8192,"], "argument --lengths: must be a whole number, got ''"),
        (["--latency", "slow"], "argument --latency: must be a number, got 'slow'"),
        (["--part", "link", "--rounds", "0"], "argument --rounds: must be at least 1, got 0"),
        (["--part", "link", "--lengths", "1000"], "the length must be a multiple of 1024 times"),
        (["--part", "link"], "ip must be installed and allowed, got:"),
    ],
)
def test_the_command_refuses(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "distributed", *options])
    with pytest.raises(SystemExit):
        main()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("size", ["2", "4"])
def test_the_document_has_places(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    settings = replace(SETTINGS, heads=16)
    modules: list[Any] = [measured, computed, limited_link]
    names = [name for module in modules for name in module.sections(settings)]
    for name in (*names, *computed.sections(replace(SETTINGS, heads=4))):
        markdown.section(ROOT / "benchmarks/results/tables.md", name)


def test_tables_without_a_place_are_refused_before_they_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["distributed", "--part", "computed", "--heads", "5", "--write"]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
    with pytest.raises(SystemExit):
        main()
    assert "must hold the markers <!-- distributed-computed-5: begin -->" in capsys.readouterr().err

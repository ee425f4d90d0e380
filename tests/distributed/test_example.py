"""The example and the blocks of docs/distributed.md run under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from repository import ROOT

pytestmark = pytest.mark.slow


def on_two_processes(*words: str | Path) -> str:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    done = subprocess.run(
        [*torchrun, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "tests/shared")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_losses_of_a_shared_text_are_those_of_one_process() -> None:
    *_, shared, one = on_two_processes(ROOT / "examples/context_parallel.py").splitlines()
    expected = [float(x) for x in one.partition(": ")[2].split()]
    assert expected[0] > expected[-1] + 0.1
    found = [float(x) for x in shared.partition(": ")[2].split()]
    assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.needs("transformers >= 5.23", "it had another tensor parallelism")
def test_the_blocks_of_the_page_run(tmp_path: Path) -> None:
    assert "ran 3 blocks" in on_two_processes(ROOT / "tests/distributed/page_program.py", tmp_path)

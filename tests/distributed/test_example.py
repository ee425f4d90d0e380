"""The example of docs/distributed.md runs under torchrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from repository import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_a_line_is_found_on_two_processes() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"),
            *(str(ROOT / "examples/context_parallel.py"), "--multiple", "4"),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"^8\d{3} tokens on 2 processes$", done.stdout, re.MULTILINE)
    stated, found = re.findall(r"its number is (\d{4}), found (\d{4})", done.stdout)[0]
    assert stated == found


def test_the_blocks_of_the_page_run_on_two_processes(tmp_path: Path) -> None:
    """Passes, generation, zig-zag and the class of Trainer: blocks 0 to 2 of the page."""
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    program = Path(__file__).with_name("page_program.py")
    done = subprocess.run(
        [*torchrun, program, tmp_path, "0", "1", "2"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "tests/shared")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "ran 3 of 5 blocks" in done.stdout

"""What all studies do: work in processes, also if one or the parent is killed, and means."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from studies import means
from studies.command import run_in_processes
from studies.encoder import program as encoder
from studies.nano_bloom import program as nano_bloom
from studies.schemes import program as schemes
from studies.stretchings import program as stretchings

from commands import other_run
from repository import ROOT

pytestmark = pytest.mark.slow  # of a program beside the package


def test_a_study_refuses_a_folder_in_which_another_one_works(tmp_path: Path) -> None:
    with other_run(tmp_path) as first:
        for study in (nano_bloom, encoder, schemes, stretchings):
            with pytest.raises(ValueError, match=f"--output .* in use by process {first.pid} "):
                study.main(["--output", str(tmp_path)])


def test_a_killed_process_is_an_error() -> None:
    with pytest.raises(ChildProcessError, match="run the same command again"):
        list(run_in_processes(signal.raise_signal, [signal.SIGKILL] * 2, 1))


def _alive(process: int) -> bool:
    status = Path(f"/proc/{process}/status")
    return status.exists() and "\nState:\tZ" not in status.read_text()


#: A program that works on items, in processes that import it, too.
PROGRAM = """
import os, sys, time
from pathlib import Path
from studies.command import run_in_processes

def sleep(folder):
    (folder / str(os.getpid())).touch()
    time.sleep(600)

def sleep_or_fail(folder):
    if folder is None:
        time.sleep(1)  # until the other process works
        raise ValueError("folder must be a path, got None")
    sleep(folder)

folder = Path(sys.argv[1])
"""


def _start(tmp_path: Path, function: str, items: str, processes: int) -> subprocess.Popen[bytes]:
    """Start a program that works on items."""
    work = f"list(run_in_processes({function}, {items}, {processes}))"
    script = tmp_path.parent / f"{tmp_path.name}.py"
    script.write_text(f"{PROGRAM}if __name__ == '__main__': {work}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], env=environment, stderr=subprocess.PIPE
    )


def test_an_error_is_raised_and_ends_the_program_while_others_work(tmp_path: Path) -> None:
    program = _start(tmp_path, "sleep_or_fail", "[folder, None]", 2)
    try:
        _, said = program.communicate(timeout=120)
    finally:
        program.kill()
    assert b"folder must be a path, got None" in said


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent = _start(tmp_path, "sleep", "[folder]", 1)
    try:
        deadline = time.monotonic() + 120
        while not (started := list(tmp_path.iterdir())) and time.monotonic() < deadline:
            time.sleep(0.05)
        worker = int(started[0].name)
    finally:
        parent.kill()
        parent.communicate()
    deadline = time.monotonic() + 60
    while _alive(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(worker)


def test_means_have_students_intervals_and_shares_end_at_all_and_nothing() -> None:
    mean, low, high = means.share_interval([1.0, 0.9, 1.0])
    assert (round(mean, 1), high) == (96.7, 100.0)
    assert low == pytest.approx(96.667 - 4.3027 * 5.7735 / 3**0.5, abs=1e-2)
    shown = [means.share([]), means.share([0.5]), means.points([]), means.points([0.001, -0.003])]
    assert shown == ["", "50", "", "+0 ± 3"]
    assert [means.paired_p([0.1]), means.paired_p([0.1, 0.1])] == ["", ""]
    assert means.paired_p([0.1, 0.101, 0.099]) == "< 0.001"
    axes = means.curves(
        {"one": [[0.5], [], [0.4, 0.6]]}, (1, 2, 4), 8, "%", ax=Figure().subplots(), limits=None
    )
    assert axes.get_lines()[0].get_ydata().tolist() == pytest.approx([50, np.nan, 50], nan_ok=True)
    (band,) = axes.collections
    assert np.nanmax(band.get_paths()[-1].vertices[:, 1]) == pytest.approx(50 + 127.06, rel=1e-4)

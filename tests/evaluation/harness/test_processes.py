"""Runs with two processes give the same results as runs with one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LAUNCH = ["--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no"]


def launch(folder: Path, arguments: list[str], *, processes: int) -> str:
    """Run a module in a new folder with a number of processes and return its output."""
    folder.mkdir()
    cases = [{"prompt": f"line a is <{i}>. " * i, "expected_number": i} for i in range(1, 4)]
    (folder / "lines_200.jsonl").write_text("\n".join(map(json.dumps, cases)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = ["-m", "accelerate.commands.launch", *LAUNCH, f"--main_process_port={port}"]
    command = [sys.executable, *(launcher if processes > 1 else []), "-m", *arguments]
    environment = {
        **os.environ,
        **{"ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(folder: Path, checkpoint: Path, *, processes: int) -> dict[str, Any]:
    arguments = [
        *("ntk_alibi.evaluation", "--model", "ntk_alibi"),
        *("--model_args", f"pretrained={checkpoint},scaling=ntk,factor=4"),
        *("--tasks", "ntk_alibi_lines,ntk_alibi_prose,longeval_lines_200"),
        *("--metadata", "lengths=[512,1024]", "records=3", "windows=3", "data=."),
        *("--output_path", "results.json", "--log_samples"),
    ]
    printed = launch(folder, arguments, processes=processes)
    assert printed.count("|ntk_alibi_lines ") == 1  # only one process prints
    (path,) = folder.glob("results*.json")
    results: dict[str, Any] = json.loads(path.read_text())
    logs = [p.read_text("utf-8").rstrip("\n").split("\n") for p in folder.glob("samples*")]
    samples = [json.loads(line) for log in logs for line in log]
    results["single"] = {(s["doc_hash"], s["doc_id"]): s["filtered_resps"] for s in samples}
    return results


@pytest.mark.slow
def test_two_processes_give_what_one_gives(tmp_path: Path, tiny_checkpoint: Path) -> None:
    one = run(tmp_path / "one", tiny_checkpoint, processes=1)
    two = run(tmp_path / "two", tiny_checkpoint, processes=2)
    assert two["results"] == one["results"]
    assert len(one["single"]) == 6 + 6 + 3
    assert two["single"] == one["single"]
    assert two["n-samples"]["ntk_alibi_lines"] == {"original": 6, "effective": 6}


COMMANDS = {
    "eval": ["eval", "--quick", "--methods", "original", "ntk:2"],
    "eval --tasks": ["eval", "--tasks", "longeval_lines_200", "--data", ".", "--methods", "ntk:2"],
    "tune": ["tune", "--length", "256", "--records", "4", "--windows", "2", "--methods", "ntk:2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_two_processes_print_what_one_prints(
    tmp_path: Path, tiny_checkpoint: Path, arguments: list[str]
) -> None:
    command = ["ntk_alibi.cli", *arguments, "--model", str(tiny_checkpoint), "--json"]
    one = launch(tmp_path / "one", command, processes=1)
    two = launch(tmp_path / "two", command, processes=2)
    one_said, two_said = (json.loads(printed, parse_constant=str) for printed in (one, two))
    assert two_said == one_said
    assert not list((tmp_path / "two").glob("*.unfinished"))  # the last process removed them

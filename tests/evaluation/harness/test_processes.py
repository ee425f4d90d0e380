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

from commands import search_tasks_in
from ntk_alibi.cli import main

pytestmark = pytest.mark.slow  # needs the evaluation harness

LAUNCH = ["--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no"]

COMMANDS = {
    "eval": ["eval", "--quick", "--methods", "original", "ntk:2"],
}


def commands(checkpoint: Path) -> list[list[str]]:
    """Return the command lines of `COMMANDS`, and one of the harness."""
    ours = [[*command, "--model", str(checkpoint), "--json"] for command in COMMANDS.values()]
    theirs = [
        *("lm-eval", "--model", "ntk_alibi"),
        *("--model_args", f"pretrained={checkpoint},method=ntk:4"),
        *("--tasks", "ntk_alibi_lines,ntk_alibi_prose,longeval_lines_200"),
        *("--metadata", "lengths=[512,1024]", "records=3", "windows=3", "data=."),
        *("--output_path", "results.json", "--log_samples"),
    ]
    return [*ours, theirs]


#: Runs command lines of `ntk-alibi` one after the other, given as a list in JSON. The folder of a
#: command is removed late, so that a process that did not wait would begin the next one in it.
PROGRAM = """
import json, shutil, sys, time
from ntk_alibi.cli import main
remove = shutil.rmtree
shutil.rmtree = lambda *args, **options: (time.sleep(0.5), remove(*args, **options))
for command in json.loads(sys.argv[1]):
    main(command)
"""


def cases(folder: Path) -> None:
    """Write a file of cases."""
    folder.mkdir()
    lines = [{"prompt": f"line a is <{i}>. " * i, "expected_number": i} for i in range(1, 4)]
    (folder / "lines_200.jsonl").write_text("\n".join(map(json.dumps, lines)))


def on_two_processes(folder: Path, checkpoint: Path) -> str:
    """Run the commands in a new folder, in a launch of two processes; return their output."""
    cases(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = folder / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "accelerate.commands.launch", *LAUNCH),
            *(f"--main_process_port={port}", str(program)),
            json.dumps(commands(checkpoint)),
        ],
        cwd=folder,
        env={
            **os.environ,
            **{"ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def of_harness(folder: Path, printed: str) -> dict[str, Any]:
    """Return the results that the harness wrote, with each single answer."""
    assert printed.count("|ntk_alibi_lines ") == 1  # only one process prints
    (path,) = folder.glob("results*.json")
    results: dict[str, Any] = json.loads(path.read_text())
    logs = [p.read_text("utf-8").rstrip("\n").split("\n") for p in folder.glob("samples*")]
    samples = [json.loads(line) for log in logs for line in log]
    results["single"] = {(s["doc_hash"], s["doc_id"]): s["filtered_resps"] for s in samples}
    return results


def test_two_processes_give_what_one_gives(
    tmp_path: Path,
    tiny_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = on_two_processes(tmp_path / "two", tiny_checkpoint)
    assert not list((tmp_path / "two").glob("*.unfinished"))  # the last process removed them
    cases(tmp_path / "one")
    monkeypatch.chdir(tmp_path / "one")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    search_tasks_in(tmp_path / "one", monkeypatch)  # the two processes have searched all
    reader = json.JSONDecoder(parse_constant=str)
    *ours, theirs = commands(tiny_checkpoint)
    rest = said
    for command in ours:
        capsys.readouterr()
        main(command)
        alone = json.loads(capsys.readouterr().out, parse_constant=str)
        together, end = reader.raw_decode(rest := rest.lstrip())
        rest = rest[end:]
        assert together == alone, command
    main(theirs)
    one = of_harness(tmp_path / "one", capsys.readouterr().out)
    two = of_harness(tmp_path / "two", rest)
    assert two["results"] == one["results"]
    assert len(one["single"]) == 6 + 6 + 3
    assert two["single"] == one["single"]
    assert two["n-samples"]["ntk_alibi_lines"] == {"original": 6, "effective": 6}

"""Errors on the command line: one sentence, before the work where possible, and nothing is lost."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commands import error_of, full_disk, of_linux, search_tasks_in
from ntk_alibi.cli import main
from ntk_alibi.evaluation.comparing import length_study, plan
from repository import ROOT

pytestmark = pytest.mark.slow

EXISTS = of_linux("File exists")
NULL = pytest.mark.skipif(os.name == "nt", reason="Windows has no /dev/null")

RECORD = {"prompt": "line a is <5>. What is a? <", "expected_number": 5}


@pytest.fixture(autouse=True)
def files(in_tmp: Path) -> None:
    (in_tmp / "lines.jsonl").write_text(json.dumps(RECORD))
    (in_tmp / "file").write_text("x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output_path", "file"], f"--output_path must be a .*, got 'file': {EXISTS}"),
        pytest.param(["-o", "/dev/null/results.json"], "/dev/null", marks=NULL),
        (["--use_cache", "damaged"], "damaged_rank0.db' must be a file of answers; remove it"),
        pytest.param(["-c", "/dev/null/cache"], "/dev/null", marks=NULL),
    ],
)
def test_files_of_lm_eval_are_checked_before_the_work(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("damaged_rank0.db").write_bytes(b"not a database" * 100)
    arguments = ["lm-eval", "--model", "ntk_alibi", "--tasks", "longeval_lines_200", *arguments]
    error = error_of(arguments, capsys)
    assert error.startswith("ntk-alibi: error: ")
    assert re.search(message, error)


def test_a_warning_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    code = "from warnings import warn\nfrom ntk_alibi.cli.errors import sentences\n"
    code += "with sentences('x'):\n    warn('no\\nlength')\nwarn('usual')"
    subprocess.run([sys.executable, "-c", code], check=True)
    inside, outside = capfd.readouterr().err.splitlines()[:2]
    assert inside == "warning: no length"
    assert outside == "<string>:5: UserWarning: usual"


def test_slopes_of_zero_reach_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    main(["slopes", "1", "--method", "interpolation:1e308"])
    assert capsys.readouterr().out.splitlines()[1].split() == ["1", "0", "inf"]


STORED: dict[str, Any] = {
    "train_length": 2048,
    "methods": ["original"],
    "retrieval": [],
    "by_distance": [],
    "by_depth": [],
    "perplexity": [
        {
            **{"method": "original", "begin": 0.0, "end": 1.0, "nats": 2.7},
            **{"difference": 0.0, "half_width": 0.1},
        }
    ],
}


CELL: dict[str, Any] = {
    **{"task": "lines", "method": "original", "multiple": 1.5, "cases": 3},
    **{"accuracy": 0.5, "low": 0.25, "high": 0.75, "gain": 0.0, "gain_half_width": None},
}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be a JSON file: Expecting property name"),
        ("[" * 100000, "must be a JSON file: too many nested brackets"),
        ("[]", "it must be an object, got []"),
        (json.dumps({"more": 1}), "'methods' is missing"),
        (json.dumps(STORED | {"more": 1}), "'more' is unknown"),
        (json.dumps(STORED | {"train_length": "x"}), "train_length must be an integer, got 'x'"),
        (json.dumps(STORED | {"methods": ["ntk:2"]}), "perplexity must have the methods ('ntk:2'"),
        (json.dumps(STORED | {"perplexity": []}), "must hold results, got none"),
        (json.dumps(STORED | {"retrieval": [CELL | {"accuracy": 7}]}), "accuracy of retrieval mus"),
        (json.dumps(STORED | {"retrieval": [CELL | {"gain": "x"}]}), "'retrieval' must be a list"),
        (json.dumps(STORED | {"by_depth": 5}), "'by_depth' must be a list of results: TypeError"),
    ],
)
def test_from_json_refuses_what_eval_did_not_print(
    text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("stored.json").write_text(text)
    error = error_of(["eval", "--from-json", "stored.json"], capsys)
    assert "'stored.json' must be " in error
    assert message in error


def test_from_json_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    stored = ROOT / "docs/pictures/nano-bloom.json"
    main(["eval", "--from-json", str(stored), "--pictures", "nano"])
    out = capsys.readouterr().out
    assert "lines: accuracy" in out
    assert f"pictures: {Path('nano/study.png').resolve()}\n" in out
    assert [path.name for path in Path("nano").iterdir()] == ["study.png"]
    Path("stored.json").write_text(json.dumps(STORED))
    main(["eval", "--from-json", "stored.json"])
    assert "2.700" in capsys.readouterr().out


def test_a_prompt_without_room_for_an_answer_is_one_sentence(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The harness checks this by an assertion."""
    search_tasks_in(Path(), monkeypatch)
    command = ["lm-eval", "--model", "ntk_alibi", "--tasks", "longeval_lines_200"]
    command += ["--model_args", f"pretrained={tiny_checkpoint},max_length=10"]
    error = error_of([*command, "--metadata", "data=lines.jsonl"], capsys)
    assert "ntk-alibi: error: Invalid configuration: requested max tokens to generate" in error


def test_answers_are_kept_until_the_results_are_shown(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    quick = {"multiples": (1,), "line_records": 1, "topic_records": 0, "prose_windows": 0}
    monkeypatch.setattr(plan, "QUICK", quick)
    arguments = ["eval", "--quick", "--model", str(tiny_checkpoint), "--train-length", "256"]
    arguments += ["--methods", "original", "--pictures", "pictures"]
    with monkeypatch.context() as patched:
        patched.setattr("matplotlib.figure.Figure.savefig", full)
        assert "No space left on device" in error_of(arguments, capsys)
    assert Path(".ntk-alibi-eval.unfinished/answers.jsonl").exists()
    with monkeypatch.context() as patched:
        patched.setattr("ntk_alibi.evaluation.records.record.answered", pytest.fail)
        main(arguments)
    out, told = capsys.readouterr()
    assert "lines: accuracy" in out
    assert re.findall(r"unfinished has (\d+) answers of an earlier run", told) == ["1"]
    assert not Path(".ntk-alibi-eval.unfinished").exists()
    main(arguments)
    assert "earlier run" not in capsys.readouterr().err


def test_an_error_of_the_program_keeps_its_traceback(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(length_study, "answer", lambda *_, **__: {}["a mistake"])
    with pytest.raises(KeyError, match="a mistake"):
        main(["eval", "--model", str(tiny_checkpoint)])


COMMAND = [sys.executable, "-m", "ntk_alibi"]


def test_a_closed_pipe_is_no_error() -> None:
    with subprocess.Popen(
        [*COMMAND, "slopes", "100000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().split()[0] == b"head"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("arguments", [["info"], ["slopes", "100000"]])
def test_a_full_disk_is_one_sentence(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    error = "[Errno 28] No space left on device: standard output or a temporary file"
    assert done.stderr == f"ntk-alibi: error: {error}\n"


def test_a_run_on_a_full_disk_continues_later(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = {"multiples": (1,), "line_records": 8, "topic_records": 0, "prose_windows": 0}
    monkeypatch.setattr(plan, "QUICK", quick)
    command = ["eval", "--quick", "--model", str(tiny_checkpoint), "--json"]
    command += ["--train-length", "512", "--methods", "original", "ntk:2", "--output", "answers"]
    with full_disk(1_800):
        error = error_of(command, capsys)
    assert "ntk-alibi: error: " in error.splitlines()[-1]
    assert "answers" in error
    printed = []
    for folder in ("answers", "others"):
        command[-1] = folder
        main(command)
        printed.append(json.loads(capsys.readouterr().out, parse_constant=str))
    assert printed[0] == printed[1]


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("studies.nano_bloom", ["--seed", "-1"]),
        ("studies.schemes", ["--schemes", "--output", "none"]),
        ("studies.schemes", ["--document", "none.md"]),
    ],
)
def test_other_commands_end_in_one_sentence_too(
    module: str,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["program", *arguments])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module(module, run_name="__main__")
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"python -m {module}: error: ")
    assert error.count("\n") == 1

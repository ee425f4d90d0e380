"""Command lines that are refused before any work, and the one line of their errors."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from commands import assert_one_sentence, of_linux

EXISTS, FOLDER = of_linux("File exists"), of_linux("Is a directory")
PATH_OF_LINUX = pytest.mark.skipif(os.name == "nt", reason="the path is one of Linux")

ROWS = [
    (["slopes", "0"], "num_heads must be between 1"),
    (["slopes", "8", "--method", "dynamic-ntk", "--length", "-5"], "--length must be between 1"),
    (["slopes", "8", "--method", "ntk:2", "--length", "9"], "and no other, got ntk:2"),
    (["slopes", "8", "--method", "knee:8:2"], "got 'knee:8:2': use ntk:FACTOR"),
    (["slopes", "8", "--method", "original:logn=1"], "--method must be a scaling without"),
    (["slopes", "8", "--method", "dynamic-ntk"], "a dynamic method, got only dynamic-ntk"),
    (["eval", "--model", "/nowhere"], "model must be a folder with config.json"),
    (
        ["eval", "--from-json", "none.json"],
        "--from-json must be a file that can be read, got 'none.json': No such file",
    ),
    (["eval", "--seconds", "0"], "--seconds must be "),
    (["eval", "--train-length", "0"], "--train-length must be between 1"),
    (["eval", "--output", "file"], f"--output must be a folder .*, got 'file': {EXISTS}"),
    pytest.param(
        ["eval", "--output", "/dev/null/x"],
        "--output must be a .*, got '/dev/null/x': Not a di",
        marks=PATH_OF_LINUX,
    ),
    pytest.param(
        ["eval", "--pictures", "/dev/null/x"],
        "--pictures must be a .*, got '/dev/null/x': Not a di",
        marks=PATH_OF_LINUX,
    ),
    (["eval", "--lengths", "999999999"], "--lengths must be between 1 and 4194304"),
    (["eval", "--lengths", "20"], "length must hold a record of lines and its questions, got 20"),
    (["eval", "--methods", "dynamic-ntk:query"], "got 'query': one factor for each text"),
    (["eval", "--from-json", "text", "--methods", "ntk:2"], "--methods must not be given with"),
    (["eval", "--from-json", "folder"], f"got 'folder': {FOLDER}"),
    (["eval", "--from-json", "bytes"], "'bytes' must be a JSON file"),
    (["eval", "--methods", "ntk"], "error: method must be original or one of"),
    (["eval", "--methods", "NTK:4"], "did you mean ntk:4?"),
    (["eval", "--model", "text"], "--model must be a folder with config.json"),
    (["bench", "--lengths", "999999999"], "--lengths must be between 1 and 174762, got 999999999"),
    (["bench", "--head-dim", "257"], "--head-dim must be between 1 and 256"),
    (["bench", "--rounds", "0"], "--rounds must be between 1 and"),
    (["bench", "--method", "ntk"], "--method"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "message"), ROWS)
def test_a_mistake_is_one_sentence(
    arguments: list[str],
    message: str,
    in_tmp: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("lines.jsonl").write_text(json.dumps({"prompt": "line a is <5>.", "expected_number": 5}))
    Path("file").write_text("x")
    Path("text").write_text("x")
    Path("bytes").write_bytes(b"\xff\xfe")
    Path("folder").mkdir()
    if "--model" not in arguments:
        loader = "ntk_alibi.models.checked_loader.WholeCausalLM.from_pretrained"
        monkeypatch.setattr(loader, lambda *_, **__: pytest.fail("a model was loaded"))
    assert_one_sentence(arguments, message, capsys)

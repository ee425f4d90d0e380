"""Data that a wheel may leave to the package ntk-alibi-models."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ntk_alibi._shipped import APART, shipped
from repository import ROOT


def test_a_build_from_source_holds_its_data() -> None:
    assert (shipped("ntk_alibi.models", "nano_bloom", "the model") / "config.json").is_file()
    assert shipped("ntk_alibi.evaluation.records", "kjv.txt.xz", "the prose").is_file()


def test_without_data_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, APART, None)
    sentence = r"^the model needs ntk_alibi_models: pip install 'ntk-alibi\[models\]'$"
    with pytest.raises(ModuleNotFoundError, match=sentence):
        shipped("ntk_alibi.models", "another_bloom", "the model")


def test_data_of_the_other_package_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / APART).mkdir()
    (tmp_path / APART / "__init__.py").write_text("")
    (tmp_path / APART / "another_bloom").write_text("weights")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, APART, raising=False)
    assert shipped("ntk_alibi.models", "another_bloom", "the model").read_text() == "weights"
    del sys.modules[APART]


@pytest.mark.slow
def test_the_other_package_has_what_wheels_leave_out(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path]
    done = subprocess.run([*command, ROOT / "ntk-alibi-models"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    model = (ROOT / "src/ntk_alibi/models/nano_bloom").iterdir()
    own = {f"{APART}/nano_bloom/{path.name}" for path in model} | {f"{APART}/kjv.txt.xz"}
    assert own < names

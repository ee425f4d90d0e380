"""What `export` checks, what it passes to a format, and what an error leaves."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import ntk_alibi as na
from commands import assert_one_sentence
from ntk_alibi.engines import export as door
from ntk_alibi.engines.export import Format, Request, Written
from small_models import make_model

DONE = Written(("input_ids",), ("logits",), "not at all")


def check(request: Request) -> None:
    if request.method == "MaxBias(factor=3.0)":
        raise ValueError("scaling must be another")


def write_file(request: Request, path: Path) -> Written:
    path.write_text(repr(request.settings.scaling))
    request.report("a line")
    return DONE


def write_folder(request: Request, path: Path) -> Written:
    (path / "part").write_text(request.dtype)
    return DONE


@pytest.fixture(autouse=True)
def formats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two formats that write little, so that these tests need no other package."""
    made = {
        "leaf": Format(("float32", "q8_0"), False, check, write_file),
        "tree": Format(("float32",), True, check, write_folder),
    }
    for name, form in made.items():
        module = ModuleType(f"format_{name}")
        module.FORMAT = form  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(door.FORMATS, name, module.__name__)


def replace_write(monkeypatch: pytest.MonkeyPatch, name: str, write: Any) -> None:
    module = sys.modules[door.FORMATS[name]]
    form = module.FORMAT
    monkeypatch.setattr(module, "FORMAT", Format(form.dtypes, form.is_folder, check, write))


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model("bloom", layers=1)


def test_a_file_is_written_and_described(model: Any, tmp_path: Path) -> None:
    lines: list[str] = []
    exported = na.export(model, tmp_path / "small.leaf", "ntk:4", progress=lines.append)
    assert lines == ["a line"]
    assert (tmp_path / "small.leaf").read_text() == "NTK(factor=4.0)"
    assert (exported.format, exported.dtype, exported.size) == ("leaf", "float32", 15)
    assert str(exported).splitlines() == [
        f"file {tmp_path / 'small.leaf'}: leaf, float32, 0.0 MiB",
        "model: BLOOM, NTK(factor=4.0)",
        "input: input_ids",
        "output: logits",
        "checked: not at all",
    ]
    assert na.patched(model) == []
    assert os.listdir(tmp_path) == ["small.leaf"]


def test_a_folder_says_what_it_is(model: Any, tmp_path: Path) -> None:
    exported = na.export(model, tmp_path / "x", format="tree")
    about = json.loads((tmp_path / "x" / door.ABOUT).read_text())
    assert about["format"] == "tree"
    assert about["method"] == "plain ALiBi"
    assert about["size"] == exported.size == 7
    assert str(exported).startswith(f"folder {tmp_path / 'x'}: tree, ")
    assert os.listdir(tmp_path) == ["x"]


def test_none_is_the_patch_in_force(model: Any, tmp_path: Path) -> None:
    with na.patch(model, na.Interpolation(2.0)):
        na.export(model, tmp_path / "a.leaf")
        with pytest.raises(ValueError, match="method must be None for a model that is patched"):
            na.export(model, tmp_path / "b.leaf", "ntk:4")
    na.export(model, tmp_path / "c.leaf")
    assert (tmp_path / "a.leaf").read_text() == "Interpolation(factor=2.0)"
    assert (tmp_path / "c.leaf").read_text() == "None"
    assert sorted(os.listdir(tmp_path)) == ["a.leaf", "c.leaf"]


def test_a_configuration_is_followed(model: Any, tmp_path: Path) -> None:
    model.config.ntk_alibi = {"method": "ntk:3"}
    na.export(model, tmp_path / "a.leaf")
    na.export(model, tmp_path / "b.leaf", "original")
    assert (tmp_path / "a.leaf").read_text() == "NTK(factor=3.0)"
    assert (tmp_path / "b.leaf").read_text() == "None"
    assert na.patched(model) == []
    del model.config.ntk_alibi


@pytest.mark.parametrize("name", ["leaf", "tree"])
def test_what_is_there_is_replaced_when_asked(model: Any, name: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{name}"
    na.export(model, path, "ntk:4")
    with pytest.raises(ValueError, match=r"path must be new unless overwrite is True, got '.*a\."):
        na.export(model, path)
    exported = na.export(model, path, overwrite=True)
    assert exported.method == "plain ALiBi"
    assert os.listdir(tmp_path) == [f"a.{name}"]


def test_a_folder_of_something_else_is_never_replaced(model: Any, tmp_path: Path) -> None:
    """Such as the checkpoint itself."""
    model.save_pretrained(tmp_path / "checkpoint")
    before = sorted(os.listdir(tmp_path / "checkpoint"))
    with pytest.raises(ValueError, match="path must be a new folder, or one that export wrote"):
        na.export(model, tmp_path / "checkpoint", format="tree", overwrite=True)
    assert sorted(os.listdir(tmp_path / "checkpoint")) == before


@pytest.mark.parametrize("name", ["leaf", "tree"])
@pytest.mark.parametrize(
    ("raised", "caught", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), OSError, "No space left .*a.x'"),
        (OSError("8 requested and 4 written"), OSError, "8 requested and 4 written: '.*a.x'"),
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
        (ValueError("scaling must be another"), ValueError, "scaling must be another"),
    ],
    ids=str,
)
def test_an_error_leaves_what_was_there(
    model: Any,
    name: str,
    raised: BaseException,
    caught: type[BaseException],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(request: Request, path: Path) -> Written:
        (path / "half" if name == "tree" else path).write_text("half")
        raise raised

    path = tmp_path / "a.x"
    replace_write(monkeypatch, name, fail)
    with pytest.raises(caught, match=message):
        na.export(model, path, format=name)
    assert os.listdir(tmp_path) == []


def test_a_rename_that_fails_brings_the_old_folder_back(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.tree"
    na.export(model, path, "ntk:4")

    def fail(_: Path, target: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(target))

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="Input/output error"):
        na.export(model, path, overwrite=True)
    assert json.loads((path / door.ABOUT).read_text())["method"] == "NTK(factor=4.0)"
    assert os.listdir(tmp_path) == ["a.tree"]


def test_wrong_arguments_are_refused_by_name(model: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    leaf = tmp_path / "a.leaf"
    for arguments, options, error, message in (
        ((model, 7), {}, TypeError, "path must be the path of a file"),
        ((model, tmp_path / "a.bin"), {}, ValueError, "format must be given .*a.bin"),
        (
            (model, leaf),
            {"format": "openvino"},
            ValueError,
            r"format must be one of 'gguf', 'onnx', 'torch', .* \(OpenVINO reads the folder of "
            r"'onnx'\), got 'openvino'",
        ),
        ((model, tmp_path / "no/a.leaf"), {}, ValueError, "path must be a name in a folder that"),
        ((model, tmp_path / "file"), {"format": "tree", "overwrite": True}, ValueError, "a folder"),
        ((model, tmp_path / "folder"), {"format": "leaf", "overwrite": True}, ValueError, "a file"),
        ((model, leaf), {"dtype": "int4"}, ValueError, "dtype for format 'leaf' must be one of"),
        ((model, leaf), {"dtype": torch.float16}, ValueError, "got 'float16'"),
        ((model, leaf), {"tokenizer": "gpt2"}, TypeError, "tokenizer must be the model's"),
        ((model, leaf), {"cache": 1}, TypeError, "cache must be"),
        ((model, leaf), {"overwrite": 1}, TypeError, "overwrite must be"),
        ((model, leaf), {"progress": True}, TypeError, "progress must be a function of a line"),
        ((model, leaf, "nkt:4"), {}, ValueError, "method must be original or one of"),
        ((model, leaf, na.NTK), {}, TypeError, "method must be None or an object"),
        (("a folder", leaf), {}, TypeError, "model must be a torch.nn.Module"),
        ((torch.nn.Linear(2, 2), leaf), {}, ValueError, "model must hold one decoder"),
        ((torch.nn.ModuleList([model, make_model("bloom")]), leaf), {}, ValueError, "one decoder"),
    ):
        with pytest.raises(error, match=message):
            na.export(*arguments, **options)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_model_without_numbers_is_refused(model: Any, tmp_path: Path) -> None:
    with torch.device("meta"):
        empty = type(model)(model.config)
    with pytest.raises(ValueError, match="model must have its weights in memory"):
        na.export(empty, tmp_path / "a.leaf")


def test_the_command_checks_the_path_before_it_loads_a_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.leaf").write_text("")
    for arguments, message in (
        (["-o", "old.leaf"], "path must be new unless overwrite is True, got 'old.leaf'"),
        (["-o", "no/new.leaf"], "path must be a name in a folder that exists"),
        (["-o", "new.bin"], "format must be given"),
        (["-o", "a.leaf", "--method", "nkt:4"], "--method must be original or one of"),
    ):
        assert_one_sentence(["export", "--model", "/nowhere", *arguments], message, capsys)
    assert os.listdir(tmp_path) == ["old.leaf"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dtype", "float16"], "--dtype for format 'leaf' must be one of"),
        (["--method", "max-bias:3"], "scaling must be another"),
        (["--method", "ntk:4:layers=1"], "a scaling is for all layers; patch takes a dict of"),
    ],
)
def test_the_command_checks_its_arguments_before_it_reads_the_weights(
    arguments: list[str],
    message: str,
    tiny_checkpoint: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "without weights")
    (folder / "model.safetensors").unlink()
    command = ["export", "--model", str(folder), "-o", str(tmp_path / "new.leaf")]
    assert_one_sentence([*command, *arguments], message, capsys)
    assert_one_sentence(command, "no file named model.safetensors", capsys)
    assert os.listdir(tmp_path) == ["without weights"]


def test_what_is_impossible_is_refused_before_a_package_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("gguf", "onnx"):
        monkeypatch.setitem(sys.modules, package, None)
    command = ["export", "-o", str(tmp_path / "x.gguf"), "--method"]
    assert_one_sentence([*command, "flat:4"], "the nearest that has them is MaxBias", capsys)
    assert_one_sentence([*command, "max-bias:4"], "export to 'gguf' needs gguf: pip", capsys)
    command = ["export", "-o", str(tmp_path / "x-onnx"), "--dtype"]
    assert_one_sentence([*command, "q8_0"], "dtype for format 'onnx' must be one of", capsys)
    assert_one_sentence([*command, "float32"], "export to 'onnx' needs onnx: pip", capsys)

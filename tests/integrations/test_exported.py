"""Patched models in other runtimes: ONNX Runtime, OpenVINO, AOTInductor; the page on export."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import ntk_alibi as na
from exported_models import LONG, LONG_MASK, SHAPES, Logits
from family_models import LOGITS, families
from padded_batches import MASKS
from repository import ROOT

#: Other runtimes sum in another order than torch.
NEAR = {"atol": 1e-4, "rtol": 0.0}

OPTIONS = [{"scaling": na.NTK(4.0)}, {"scaling": na.Knee(6, 5.0), "log_n": na.LogN(8, 0.5)}]

quiet = pytest.mark.filterwarnings("ignore")  # those of the exporters and runtimes
all_options = pytest.mark.parametrize("options", OPTIONS, ids=str)


def exported(model: Any, ids: torch.Tensor, options: Any) -> tuple[Any, torch.Tensor]:
    """Return a program of the traceable form, and the logits of the fused form."""
    module = Logits(model)
    with torch.no_grad(), na.patch(model, **options):
        expected = module(LONG, LONG_MASK)
    with torch.no_grad(), na.patch(model, **options, attention="traceable"):
        return torch.export.export(module, (ids, MASKS["left"]), dynamic_shapes=SHAPES), expected


def check(
    logits: Any, expected: torch.Tensor, mask: torch.Tensor = LONG_MASK, **tolerance: float
) -> None:
    kept = mask.bool()
    torch.testing.assert_close(torch.as_tensor(logits)[kept], expected[kept], **tolerance)


def onnx_file(program: Any, folder: Path) -> Path:
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason="pip install 'ntk-alibi[export]'")
    path = folder / "model.onnx"
    torch.onnx.export(program, dynamo=True, verbose=False).save(path)
    return path


@quiet
@pytest.mark.slow
@families
@all_options
def test_onnx_runtime(
    models: dict, ids: torch.Tensor, tmp_path: Path, name: str, options: Any
) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="pip install 'ntk-alibi[export]'")
    program, expected = exported(models[name], ids, options)
    session = runtime.InferenceSession(
        onnx_file(program, tmp_path), providers=["CPUExecutionProvider"]
    )
    arguments = {"input_ids": LONG.numpy(), "attention_mask": LONG_MASK.numpy()}
    check(session.run(None, arguments)[0], expected, **NEAR)


@quiet
@pytest.mark.slow
@families
@all_options
@pytest.mark.parametrize("by", ["onnx", "torch.export"])
def test_openvino(
    models: dict, ids: torch.Tensor, tmp_path: Path, name: str, options: Any, by: str
) -> None:
    openvino = pytest.importorskip("openvino", reason="pip install 'ntk-alibi[export]'")
    program, expected = exported(models[name], ids, options)
    source = onnx_file(program, tmp_path) if by == "onnx" else program
    compiled = openvino.Core().compile_model(
        openvino.convert_model(source), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    check(compiled([LONG.numpy(), LONG_MASK.numpy()])[0], expected, **NEAR)


@quiet
@pytest.mark.slow
@families
def test_aot_inductor(models: dict, ids: torch.Tensor, tmp_path: Path, name: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("AOTInductor needs g++")
    program, expected = exported(models[name], ids, OPTIONS[0])
    path = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "model.pt2")
    )
    check(torch._inductor.aoti_load_package(path)(LONG, LONG_MASK), expected, **LOGITS)


@quiet
@pytest.mark.slow
@families
def test_inductor(models: dict, name: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs g++")
    module = Logits(models[name])
    with torch.no_grad(), na.patch(module, na.NTK(4.0)):
        expected = module(LONG, LONG_MASK)
    torch.compiler.reset()
    with torch.no_grad(), na.patch(module, na.NTK(4.0), attention="traceable"):
        compiled = torch.compile(module, fullgraph=True)
        check(compiled(LONG, LONG_MASK), expected, **LOGITS)
    torch.compiler.reset()


def run_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs: dict[str, bool]
) -> dict[str, Any]:
    """Run the code of docs/export.md, but for blocks with a word whose need is not met."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/export.md").read_text(), re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, Any] = {}
    for block in blocks:
        if all(met for word, met in needs.items() if word in block):
            exec(block, names)
    return names


@quiet
def test_the_examples_of_the_page_on_export_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = {name: find_spec(name) is not None for name in ("onnxruntime", "openvino")}
    packages["torch.onnx"] = find_spec("onnx") is not None and find_spec("onnxscript") is not None
    names = run_page(
        tmp_path, monkeypatch, {"torch.compile": False, "_inductor": False, **packages}
    )
    tokens, mask, expected = (names[name] for name in ("tokens", "mask", "expected"))
    check(names["logits"], expected, mask, **NEAR)
    check(names["program"].module()(tokens, mask), expected, mask, **NEAR)
    for name in ("from_onnx_runtime", "from_openvino"):
        if name in names:
            check(names[name], expected, mask, **NEAR)


@quiet
@pytest.mark.slow
def test_the_compiled_examples_of_the_page_on_export_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs g++")
    torch.compiler.reset()
    needs = {"torch.onnx": False, "onnxruntime": False, "openvino": False}
    names = run_page(tmp_path, monkeypatch, needs)
    for name in ("from_graph", "from_package"):
        check(names[name], names["expected"], names["mask"], **NEAR)
    torch.compiler.reset()

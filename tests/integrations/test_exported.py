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
from family_models import LOGITS
from padded_batches import MASKS, batch
from repository import ROOT

#: Other runtimes sum in another order than torch.
NEAR = {"atol": 1e-4, "rtol": 0.0}

OPTIONS = [{"scaling": na.NTK(4.0)}, {"scaling": na.Knee(6, 5.0), "log_n": na.LogN(8, 0.5)}]

quiet = pytest.mark.filterwarnings("ignore")  # those of the exporters and runtimes

#: Families and options of the exported programs. BLOOM with the first options is in the page.
CASES = [*((name, OPTIONS[1]) for name in ("bloom", "mpt", "falcon")), ("falcon", OPTIONS[0])]


@pytest.fixture(scope="module", params=CASES, ids=str)
def exported(request: pytest.FixtureRequest, shallow: dict) -> tuple[Any, torch.Tensor]:
    """Return a program of the traceable form, and the logits of the fused form."""
    name, options = request.param
    module = Logits(shallow[name])
    with torch.no_grad(), na.patch(module, **options):
        expected = module(LONG, LONG_MASK)
    with torch.no_grad(), na.patch(module, **options, attention="traceable"):
        arguments = (batch(), MASKS["left"])
        return torch.export.export(module, arguments, dynamic_shapes=SHAPES), expected


def check(
    logits: Any, expected: torch.Tensor, mask: torch.Tensor = LONG_MASK, **tolerance: float
) -> None:
    kept = mask.bool()
    torch.testing.assert_close(torch.as_tensor(logits)[kept], expected[kept], **tolerance)


@pytest.fixture(scope="module")
def onnx_file(exported: tuple[Any, torch.Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason="pip install 'ntk-alibi[export]'")
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    torch.onnx.export(exported[0], dynamo=True, verbose=False).save(path)
    return path


@quiet
def test_onnx_runtime(exported: tuple[Any, torch.Tensor], onnx_file: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="pip install 'ntk-alibi[export]'")
    session = runtime.InferenceSession(onnx_file, providers=["CPUExecutionProvider"])
    arguments = {"input_ids": LONG.numpy(), "attention_mask": LONG_MASK.numpy()}
    check(session.run(None, arguments)[0], exported[1], **NEAR)


@quiet
@pytest.mark.parametrize("by", ["onnx_file", "exported"])
def test_openvino(
    exported: tuple[Any, torch.Tensor], by: str, request: pytest.FixtureRequest
) -> None:
    openvino = pytest.importorskip("openvino", reason="pip install 'ntk-alibi[export]'")
    program, expected = exported
    source = request.getfixturevalue(by) if by == "onnx_file" else program
    compiled = openvino.Core().compile_model(
        openvino.convert_model(source), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    check(compiled([LONG.numpy(), LONG_MASK.numpy()])[0], expected, **NEAR)


@quiet
@pytest.mark.parametrize("exported", CASES[-3:][::2], ids=str, indirect=True)
def test_aot_inductor(exported: tuple[Any, torch.Tensor], tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("AOTInductor needs g++")
    program, expected = exported
    path = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "model.pt2")
    )
    check(torch._inductor.aoti_load_package(path)(LONG, LONG_MASK), expected, **LOGITS)


@quiet
@pytest.mark.parametrize("name", ["mpt", "falcon"])
def test_inductor(shallow: dict, name: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs g++")
    module = Logits(shallow[name])
    with torch.no_grad(), na.patch(module, na.NTK(4.0)):
        expected = module(LONG, LONG_MASK)
    torch.compiler.reset()
    with torch.no_grad(), na.patch(module, na.NTK(4.0), attention="traceable"):
        compiled = torch.compile(module, fullgraph=True)
        check(compiled(LONG, LONG_MASK), expected, **LOGITS)
    torch.compiler.reset()


@quiet
def test_the_examples_of_the_page_on_export_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the code of docs/run-elsewhere.md, but for blocks with a word whose need is not met."""
    monkeypatch.chdir(tmp_path)
    needs = {name: find_spec(name) is not None for name in ("onnxruntime", "openvino")}
    needs["na.export"] = find_spec("gguf") is not None
    needs["torch.onnx"] = find_spec("onnx") is not None and find_spec("onnxscript") is not None
    needs["torch.compile"] = needs["_inductor"] = shutil.which("g++") is not None
    page = (ROOT / "docs/run-elsewhere.md").read_text()
    blocks = re.findall(r"```python\n(?!>>>)(.*?)```", page, re.DOTALL)
    assert len(blocks) == 7
    names: dict[str, Any] = {}
    torch.compiler.reset()
    for block in blocks:
        if all(met for word, met in needs.items() if word in block):
            exec(block, names)
    torch.compiler.reset()
    tokens, mask, expected = (names[name] for name in ("tokens", "mask", "expected"))
    check(names["logits"], expected, mask, **NEAR)
    check(names["program"].module()(tokens, mask), expected, mask, **NEAR)
    for name in ("from_onnx_runtime", "from_openvino", "from_graph", "from_package"):
        if name in names:
            check(names[name], expected, mask, **NEAR)

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
from model_runs import LOGITS, LONG, LONG_MASK, Logits
from repository import ROOT

pytestmark = pytest.mark.slow  # needs engines of exported models

quiet = pytest.mark.filterwarnings("ignore")  # of exporters and runtimes


@quiet
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mpt", {"method": na.FlatHeads(5.0), "log_n": na.LogN(8, 0.5)}),
        ("falcon", {"method": na.NTK(4.0)}),
    ],
    ids=["mpt", "falcon"],
)
def test_inductor(shallow: dict, name: str, options: Any) -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs g++")
    module = Logits(shallow[name])
    with torch.no_grad(), na.patch(module, **options):
        expected = module(LONG, LONG_MASK)
    torch.compiler.reset()
    with torch.no_grad(), na.patch(module, **options, attention="traceable"):
        compiled = torch.compile(module, fullgraph=True)
        kept, logits = LONG_MASK.bool(), compiled(LONG, LONG_MASK)
        torch.testing.assert_close(logits[kept], expected[kept], **LOGITS)
    torch.compiler.reset()


@pytest.mark.long
@quiet
def test_the_examples_of_the_page_on_export_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the code of docs/run-elsewhere.md, but for blocks with a word whose need is not met."""
    monkeypatch.chdir(tmp_path)
    needs = {name: find_spec(name) is not None for name in ("onnxruntime", "openvino")}
    needs["nano-onnx"] = needs["onnxruntime"]
    needs[".gguf"] = find_spec("gguf") is not None
    needs["torch.compile"] = needs["_inductor"] = shutil.which("g++") is not None
    page = (ROOT / "docs/run-elsewhere.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(?!>>>)(.*?)```", page, re.DOTALL)
    assert len(blocks) == 7
    names: dict[str, Any] = {}
    torch.compiler.reset()
    for block in blocks:
        if all(met for word, met in needs.items() if word in block):
            exec(block, names)
    torch.compiler.reset()
    expected = names["expected"]
    assert expected.shape == (2, 200)
    for name in ("from_onnx_runtime", "from_openvino", "from_torch", "from_library"):
        if name in names:
            assert torch.equal(torch.from_numpy(names[name]), expected), name
    if "from_graph" in names:
        assert torch.equal(names["from_graph"][:, -1].argmax(-1), expected[:, 0])

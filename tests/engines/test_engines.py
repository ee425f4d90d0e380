"""Exported graphs in their engines: families, scalings, a cache, padding and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from model_runs import LONG, LONG_MASK
from small_models import HEADS, make_model

onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'ntk-alibi[export]'")
openvino = pytest.importorskip("openvino", reason="pip install 'ntk-alibi[export]'")
pytest.importorskip("onnxscript", reason="pip install 'ntk-alibi[export]'")

#: Other runtimes sum in another order than torch.
NEAR = {"atol": 1e-4, "rtol": 0.0}

ALL: dict[str, Any] = {"method": na.FlatHeads(5.0), "log_n": na.LogN(8, 0.5)}

LAYERS = {"bloom": "n_layer", "mpt": "n_layers", "falcon": "num_hidden_layers"}

pytestmark = [
    pytest.mark.slow,  # needs engines of exported models
    pytest.mark.filterwarnings("ignore"),  # from exporters and runtimes
]

Step = Callable[[np.ndarray, np.ndarray], np.ndarray]


Run = Callable[[list[np.ndarray]], list[np.ndarray]]


def onnx_runtime(file: Path) -> Run:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    return lambda inputs: session.run(None, dict(zip(names, inputs, strict=True)))


def in_openvino(file: Path) -> Run:
    hint = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(file, "CPU", hint)
    return lambda inputs: list(compiled(inputs).values())


def onnx_step(run: Run, cache: list[np.ndarray]) -> Step:
    """Return a function of new tokens and the mask of all, which keeps the cache."""

    def step(tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        logits, *cache[:] = run([tokens, mask, *cache])
        return logits

    return step


def torch_step(module: Any, program: Any) -> Step:
    cache = [tuple(x[:, :, :0] for x in pair) for pair in program.example_inputs[0][2]]

    def step(tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            logits, cache[:] = module(torch.from_numpy(tokens), torch.from_numpy(mask), cache)
        return logits.numpy()

    return step


def check(step: Step, expected: torch.Tensor) -> None:
    """Compare the logits of a prompt, of one token, and of some more at once."""
    tokens, mask = LONG.numpy(), LONG_MASK.numpy()
    logits = np.concatenate(
        [
            step(np.ascontiguousarray(tokens[:, a:b]), np.ascontiguousarray(mask[:, :b]))
            for a, b in ((0, 1), (1, 60), (60, 61), (61, 77))
        ],
        axis=1,
    )
    kept = LONG_MASK.bool()
    torch.testing.assert_close(torch.from_numpy(logits)[kept], expected[kept], **NEAR)


def exported(folder: Path, name: str, options: Any, **more: Any) -> tuple[Any, torch.Tensor]:
    """Export a model of one layer, and return it with the logits of the fused form."""
    model = make_model(name, **{LAYERS[name]: 1}).train()
    with torch.no_grad(), na.patch(model, **options):
        na.export(model, folder, **more)
        assert model.training
        return model, model.eval()(LONG, attention_mask=LONG_MASK).logits


@pytest.mark.parametrize(("name", "heads"), [("bloom", HEADS), ("mpt", HEADS), ("falcon", 1)])
def test_onnx(name: str, heads: int, tmp_path: Path) -> None:
    """ONNX Runtime and OpenVINO read one folder."""
    _, expected = exported(tmp_path / "onnx", name, ALL)
    cache = [np.zeros((len(LONG), heads, 0, 16), np.float32)] * 2
    for engine in (onnx_runtime, in_openvino):
        check(onnx_step(engine(tmp_path / "onnx/model.onnx"), list(cache)), expected)


def test_torch(tmp_path: Path) -> None:
    """test_exported.py runs a library that AOTInductor makes of this program."""
    _, expected = exported(tmp_path / "torch", "mpt", ALL)
    program = torch.export.load(tmp_path / "torch/model.pt2")
    check(torch_step(program.module(), program), expected)


@pytest.mark.parametrize(
    ("format", "file", "name", "dtype", "cache"),
    [
        ("onnx", "model.onnx", "falcon", "float16", True),
        ("onnx", "model.onnx", "falcon", "float32", False),
        ("torch", "model.pt2", "falcon", "bfloat16", True),
    ],
)
def test_other_dtypes_and_logits_alone(
    format: str, file: str, name: str, dtype: str, cache: bool, tmp_path: Path
) -> None:
    """`export` itself compares logits with the model."""
    model = make_model(name, **{LAYERS[name]: 1})
    weights = sum(x.numel() for x in model.parameters())
    written = na.export(model, tmp_path / format, "ntk:4", dtype=dtype, cache=cache)
    per_weight = (tmp_path / format / file).stat().st_size / weights
    assert per_weight == pytest.approx(getattr(torch, dtype).itemsize, rel=0.7)
    assert next(model.parameters()).dtype == torch.float32
    names = [line.split()[0] for line in (*written.inputs, *written.outputs)]
    past = "past_key_values.N.key,", "present.N.key,"
    expected = ["input_ids", "attention_mask", past[0], "logits", past[1]]
    assert names == [name for name in expected if cache or name not in past]


def test_dtypes_that_an_engine_does_not_run_are_refused(tmp_path: Path) -> None:
    model = make_model("mpt", layers=1)
    with pytest.raises(ValueError, match="dtype for format 'onnx' must be one of"):
        na.export(model, tmp_path / "onnx", dtype="bfloat16")

"""The format "onnx": a folder that ONNX Runtime and optimum's ORTModelForCausalLM load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ntk_alibi.engines.graph import Call, Graph, any_length, graph_format


def write(graph: Graph, path: Path) -> tuple[str, Call]:
    """Write a graph, with its weights in a file beside it above 2 GB, and run it."""
    import onnxruntime

    save(graph, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def call(
        tokens: torch.Tensor, mask: torch.Tensor, past: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        arrays = (x.numpy() for x in (tokens, mask, *past))
        logits, *present = session.run(None, dict(zip(graph.inputs, arrays, strict=True)))
        return torch.from_numpy(logits), [torch.from_numpy(x) for x in present]

    return f"ONNX Runtime {onnxruntime.__version__}", call


def save(graph: Graph, path: Path) -> None:
    """Write a graph as an ONNX file, whose axes of any length have names."""
    names: list[dict[int, Any]] = []
    named: set[int | str] = set()
    for axes in graph.inputs.values():  # each name once: torch gives it to all equal axes
        of_input = any_length(axes)
        names.append({i: dim if axes[i] in named else axes[i] for i, dim in of_input.items()})
        named.update(axes)
    program = torch.onnx.export(
        graph.program,
        (),
        dynamo=True,
        verbose=False,
        input_names=list(graph.inputs),
        output_names=list(graph.outputs),
        dynamic_shapes=names,
    )
    assert program is not None
    program.save(path)


PACKAGES = ("onnx", "onnxruntime", "onnxscript")
FORMAT = graph_format("model.onnx", ("float32", "float16"), write, PACKAGES)

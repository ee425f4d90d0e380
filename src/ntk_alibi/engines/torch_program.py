"""The format "torch": a folder with a program of torch.export, which torch loads by itself.

One call of torch's AOTInductor compiles it to a shared library (docs/run-elsewhere.md).
"""

from __future__ import annotations

from pathlib import Path

import torch

from ntk_alibi.engines.export import Format, Request, Written
from ntk_alibi.engines.graph import check, lines, make_graph, write_configuration


def write(request: Request, path: Path) -> Written:
    """Write model.pt2, configuration and tokenizer."""
    graph = make_graph(request, request.dtype)
    request.report("writing model.pt2")
    write_configuration(request, path)
    torch.export.save(graph.program, path / "model.pt2")
    module = torch.export.load(path / "model.pt2").module()

    def call(
        tokens: torch.Tensor, mask: torch.Tensor, past: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        if not past:
            return module(tokens, mask), []
        logits, present = module(tokens, mask, list(zip(past[::2], past[1::2], strict=True)))
        return logits, [x for pair in present for x in pair]

    return Written(
        lines(graph.inputs, graph.dtype),
        lines(graph.outputs, graph.dtype),
        graph.checked(f"torch {torch.__version__}", call, request.dtype),
    )


FORMAT = Format(dtypes=("float32", "float16", "bfloat16"), is_folder=True, check=check, write=write)

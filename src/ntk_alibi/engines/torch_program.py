"""The format "torch": a folder with a program of torch.export, which torch loads by itself.

One call of torch's AOTInductor compiles it to a shared library (docs/run-elsewhere.md).
"""

from __future__ import annotations

from pathlib import Path

import torch

from ntk_alibi.engines.graph import Call, Graph, graph_format


def write(graph: Graph, path: Path) -> tuple[str, Call]:
    """Write a graph, and run it."""
    torch.export.save(graph.program, path)
    module = torch.export.load(path).module()

    def call(
        tokens: torch.Tensor, mask: torch.Tensor, past: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        if not past:
            return module(tokens, mask), []
        logits, present = module(tokens, mask, list(zip(past[::2], past[1::2], strict=True)))
        return logits, [x for pair in present for x in pair]

    return f"torch {torch.__version__}", call


FORMAT = graph_format("model.pt2", ("float32", "float16", "bfloat16"), write)

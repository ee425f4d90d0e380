"""A program of two processes, which says what a BLOOM that is split over both computes.

    python two_processes.py RANK FOLDER

The processes meet in FOLDER. Process 0 prints, as JSON, the greatest error of its logits, or the
sentence of the error, for each way of splitting and each form of attention.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import ntk_alibi as na
from family_models import make_model

FORMS = ("stock", "fused", "eager")


def split_sequence(model: Any, ids: torch.Tensor, mesh: DeviceMesh) -> Any:
    return context_parallel(mesh, buffers=[ids], buffer_seq_dims=[1])


def split_heads(model: Any, ids: torch.Tensor, mesh: DeviceMesh) -> Any:
    """Split weights over processes, and take the slopes of a model of half as many heads."""
    layer: dict[str, Any] = {
        "self_attention.query_key_value": ColwiseParallel(),
        "self_attention.dense": RowwiseParallel(),
    }
    for block in model.transformer.h:
        parallelize_module(block, mesh, layer)
        block.self_attention.num_heads //= 2
    model.transformer.num_heads //= 2
    return contextlib.nullcontext()


def outcome(split: Any, form: Any, mesh: DeviceMesh) -> float | str:
    """Return the greatest error of the first logits, or the sentence of the error."""
    model = make_model("bloom")
    ids = torch.arange(32)[None] % 7
    expected = model(ids).logits
    patch = contextlib.nullcontext() if form == "stock" else na.patch(model, attention=form)
    try:
        with patch, split(model, ids, mesh):
            logits = model(ids).logits
    except ValueError as error:
        return str(error)
    return float((logits - expected[:, : logits.shape[1]]).abs().max())


def main(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    with torch.no_grad():
        outcomes = {
            split.__name__: {form: outcome(split, form, mesh) for form in FORMS}
            for split in (split_sequence, split_heads)
        }
    if rank == 0:
        print(json.dumps(outcomes))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

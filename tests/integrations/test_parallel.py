"""Models and tensors that are split over processes: ours refuse what they would compute wrongly."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import ntk_alibi as na
import processes
from model_runs import run
from small_models import families, make_model

CUT = "attention must be called outside of torch's context_parallel"


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    """Return a mesh of one process, this one."""
    store = dist.FileStore(str(tmp_path / "store"), 1)  # Windows has no HashStore
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def three() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn((1, 4, 16, 8), generator=generator) for _ in range(3)]


@families
@pytest.mark.parametrize("attention", ["fused", "eager"])
def test_patched_models_in_context_parallel(
    ids: torch.Tensor, mesh: DeviceMesh, name: str, attention: Any
) -> None:
    model, ids = make_model(name), ids.clone()
    with na.patch(model, na.NTK(4.0), attention=attention):
        expected = run(model, ids)
        with (
            context_parallel(mesh, buffers=[ids], buffer_seq_dims=[1]),
            pytest.raises(ValueError, match=CUT),
        ):
            run(model, ids)
        assert torch.equal(run(model, ids), expected)


@pytest.mark.needs("torch >= 2.12", "Dynamo of older ones reads no arrays of a bias")
def test_attention_in_context_parallel(mesh: DeviceMesh) -> None:
    x, bias = three(), na.ALiBi(4)
    module, hidden = na.AlibiAttention(4, 16), torch.ones(1, 16, 16)
    compiled = torch.compile(na.attention, fullgraph=True, backend="eager")
    expected = compiled(*x, bias)
    with context_parallel(mesh, buffers=[x[0]], buffer_seq_dims=[2]):
        with pytest.raises(ValueError, match=CUT):
            na.attention(*x, bias)
        with pytest.raises(ValueError, match=CUT):
            module(hidden, hidden, hidden)
        with pytest.raises(Exception, match=r"context_parallel"):  # torch's own
            compiled(*x, bias)
    assert torch.equal(compiled(*x, bias), expected)


@pytest.mark.parametrize("placement", [Replicate(), Shard(1), Shard(2)], ids=str)
@pytest.mark.parametrize("grad", [False, True])
def test_dtensors(mesh: DeviceMesh, placement: Any, grad: bool) -> None:
    plain = three()
    tensors = [distribute_tensor(x, mesh, [placement]).requires_grad_(grad) for x in plain]
    message = (
        r"^query must be a plain tensor, got a DTensor: of a DTensor pass query.full_tensor\(\)"
    )
    with pytest.raises(TypeError, match=message):
        na.attention(*tensors, na.ALiBi(4))
    whole = [x.full_tensor() for x in tensors]
    assert torch.equal(na.attention(*whole, na.ALiBi(4)), na.attention(*plain, na.ALiBi(4)))


def test_other_arguments_that_are_dtensors(mesh: DeviceMesh) -> None:
    def spread(x: torch.Tensor) -> DTensor:
        return distribute_tensor(x, mesh, [Replicate()])

    x, hidden = three(), spread(torch.ones(1, 16, 16))
    with pytest.raises(TypeError, match="value must be a plain tensor, got a DTensor"):
        na.attention(x[0], x[1], spread(x[2]))
    with pytest.raises(TypeError, match="key_padding_mask must be a plain tensor, got a DTensor"):
        na.attention(*x, key_padding_mask=spread(torch.ones(1, 16)))
    with pytest.raises(TypeError, match="bias must be a plain tensor, got a DTensor"):
        na.attention(*x, spread(torch.ones(16, 16)))
    with pytest.raises(TypeError, match="slopes must be a plain tensor, got a DTensor"):
        na.attention(*x, na.ALiBi(4, slopes=spread(torch.ones(4))))
    with pytest.raises(TypeError, match="q must be a plain tensor, got a DTensor"):
        na.AlibiAttention(4, 16)(hidden, hidden, hidden)


@families
def test_patched_models_with_dtensors(ids: torch.Tensor, mesh: DeviceMesh, name: str) -> None:
    model = make_model(name)
    norms = [x for part, x in model.named_modules() if part.endswith((".norm_1", "t_layernorm"))]
    with na.patch(model):
        with pytest.raises(TypeError, match=r"input_ids must be a plain tensor, got a DTensor"):
            run(model, distribute_tensor(ids, mesh, [Replicate()]))
        norms[1].register_forward_hook(lambda _, __, x: distribute_tensor(x, mesh, [Replicate()]))
        with pytest.raises(TypeError, match="hidden_states must be a plain tensor, got a DTensor"):
            run(model, ids)


@pytest.mark.needs("torch >= 2.10", "older DTensors have no unbind, which BLOOM calls")
def test_queries_that_are_dtensors(ids: torch.Tensor, mesh: DeviceMesh) -> None:
    model = make_model("bloom")
    model.transformer.h[1].self_attention.query_key_value.register_forward_hook(
        lambda _, __, x: distribute_tensor(x, mesh, [Replicate()])
    )
    message = "query must be a plain tensor, got a DTensor"
    with na.patch(model), pytest.raises(TypeError, match=message):
        run(model, ids)


@families
@pytest.mark.parametrize("attention", ["fused", "eager"])
@pytest.mark.parametrize("whole", [False, True])
def test_models_with_a_part_of_the_heads(
    ids: torch.Tensor, name: str, attention: Any, whole: bool
) -> None:
    """Tensor parallelism gives layers fewer heads, and a model without a plan wrong slopes."""
    model = make_model(name)
    if whole:
        model.transformer.num_heads //= 2
    for module in model.transformer.modules():
        for heads in ("num_heads", "n_heads"):
            if hasattr(module, heads) and hasattr(module, "head_dim"):
                setattr(module, heads, getattr(module, heads) // 2)
    message = f"must compute all 8 heads .* got 4 heads and slopes of {4 if whole else 8}: .*vLLM"
    with na.patch(model, attention=attention), pytest.raises(ValueError, match=message):
        run(model, ids)


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


def outcome(rank: int, split: Any, attention: str | None) -> float | str:
    """Return the greatest error of a split BLOOM's first logits, or the sentence of the error."""
    mesh, model, ids = init_device_mesh("cpu", (2,)), make_model("bloom"), torch.arange(32)[None]
    expected = run(model, ids)
    patch = na.patch(model, attention=attention) if attention else contextlib.nullcontext()
    try:
        with patch, split(model, ids, mesh):
            logits = run(model, ids)
    except ValueError as error:
        return str(error)
    return float((logits - expected[:, : logits.shape[1]]).abs().max())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("split", "reason"), [(split_sequence, "context_parallel"), (split_heads, "all 8 heads")]
)
def test_two_processes(split: Any, reason: str) -> None:
    """transformers' own BLOOM computes other logits in either way, without a word."""
    assert min(processes.run(2, outcome, split, None)) > 0.1
    for attention in ("fused", "eager"):
        assert all(reason in sentence for sentence in processes.run(2, outcome, split, attention))

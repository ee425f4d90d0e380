"""Torch's ways around a call over ranks, unequal parts, and groups of few ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import distributed
from torch.utils.checkpoint import checkpoint

import ntk_alibi as na
from processes import run

LENGTH = 192


def parts(rank: int, size: int, **kind: Any) -> tuple[list[torch.Tensor], list[torch.Tensor], Any]:
    """Return whole inputs, this rank's parts, and its columns."""
    rng = torch.Generator().manual_seed(0)
    whole = list(torch.randn(3, 1, 4, LENGTH, 16, generator=rng).to(**kind))
    at = torch.arange(LENGTH).tensor_split(size)[rank]
    return whole, [x[:, :, at].clone() for x in whole], at


def of_dtensors(rank: int, size: int) -> None:
    """Compare DTensors with parts of unequal length, and their gradients, with one process."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    whole = [x[:, :, : LENGTH - 1].clone().requires_grad_() for x in parts(rank, size)[0]]
    given = [distribute_tensor(x.detach(), mesh, [Shard(2)]).requires_grad_() for x in whole]
    expected = na.attention(*whole, na.ALiBi(4), skip_tolerance=None)
    (expected**2).sum().backward()
    result: Any = na.distributed.attention(*given, na.ALiBi(4))
    (result**2).sum().backward()
    torch.testing.assert_close(result.full_tensor(), expected, rtol=0, atol=5e-6)
    for x, y in zip(given, whole, strict=True):
        assert x.grad is not None
        torch.testing.assert_close(x.grad.full_tensor(), y.grad, rtol=0, atol=5e-5)


def around(rank: int, size: int) -> dict[str, float]:
    """Return errors of output and gradients inside of torch's ways, relative to their bounds."""
    group, found = distributed.group.WORLD, {}

    def ours(*inputs: Any) -> Any:
        return na.distributed.attention(*inputs, na.ALiBi(4), group=group)

    def recomputed(*inputs: Any) -> Any:
        return checkpoint(ours, *inputs, use_reentrant=False)

    def strided(*inputs: Any) -> Any:
        return ours(*(x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs))

    def autocast(*inputs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return ours(*inputs)

    compiled = torch.compile(ours, backend="eager")
    float32 = {"dtype": torch.float32}
    # 4 times the rounding of a sum of squares, of values up to 4 and gradients up to 8
    ways: dict[str, tuple[Any, dict[str, Any], float]] = {
        "checkpoint": (recomputed, float32, 1e-5),
        "compile": (compiled, float32, 1e-5),
        "strides": (strided, float32, 1e-5),
        "float64": (ours, {"dtype": torch.float64}, 1e-13),
        "autocast": (autocast, float32, 4 * 8 * 2.0**-8),
        "bfloat16": (ours, {"dtype": torch.bfloat16}, 4 * 8 * 2.0**-8),
        "float16": (ours, {"dtype": torch.float16}, 4 * 8 * 2.0**-11),
    }
    for name, (way, kind, bound) in ways.items():
        whole, part, at = parts(rank, size, **kind)
        exact = [x.double().requires_grad_() for x in whole]
        own = [x.requires_grad_() for x in part]
        expected = na.attention(*exact, na.ALiBi(4), skip_tolerance=None)
        result = way(*own)
        (expected**2).sum().backward()
        (result.double() ** 2).sum().backward()
        errors = [result.detach() - expected.detach()[:, :, at]]
        for x, y in zip(own, exact, strict=True):
            assert x.grad is not None
            assert y.grad is not None
            errors.append(x.grad - y.grad[:, :, at])
        found[name] = max(float(x.abs().max()) for x in errors) / bound
    values = torch.linspace(-1, 1, LENGTH)[None]
    shared = [values.clone().requires_grad_() for _ in range(2)]
    whole, part, _ = parts(rank, size)
    (na.attention(*whole, shared[0]) ** 2).sum().backward()
    (na.distributed.attention(*part, shared[1], group=group) ** 2).sum().backward()
    expected, result = (x.grad for x in shared)
    found["an array for all queries"] = float((result - expected).norm() / expected.norm() / 1e-5)
    return found


def everything(rank: int, size: int) -> dict[str, float]:
    of_dtensors(rank, size)
    return around(rank, size)


def test_results_and_gradients_hold_inside_of_torchs_ways() -> None:
    for found in run(2, everything, 2):
        assert max(found.values()) < 1, found


def one_rank_and_one_token(rank: int) -> float:
    """Return the greatest error where every rank has one token, and more ranks than heads."""
    at = slice(rank, rank + 1)
    whole = [x[:, :2, :3] for x in parts(rank, 3)[0]]
    own = [x[:, :, at] for x in whole]
    result = na.distributed.attention(*own, na.ALiBi(2), group=distributed.group.WORLD)
    return float((result - na.attention(*whole, na.ALiBi(2))[:, :, at]).abs().max())


def test_more_ranks_than_heads_with_a_token_each() -> None:
    assert max(run(3, one_rank_and_one_token)) < 5e-6


def alone(rank: int) -> float:
    whole = parts(rank, 1)[0]
    result = na.distributed.attention(*whole, na.ALiBi(4), group=distributed.group.WORLD)
    return float((result - na.attention(*whole, na.ALiBi(4))).abs().max())


def test_a_group_of_one_is_one_process() -> None:
    assert run(1, alone) == [0.0]


def test_biases_are_described_by_their_parameters_or_their_form() -> None:
    from ntk_alibi.distributed.sequence import describe_bias

    assert describe_bias(SimpleNamespace(num_heads=4)) == "SimpleNamespace"
    assert describe_bias(na.ALiBi(4)) != describe_bias(na.ALiBi(4, slopes=[0.5] * 4))
    of_rows = [describe_bias(np.full((4, 8, 8), x)) for x in (0.0, 1.0)]
    assert of_rows[0] == of_rows[1]  # each rank has the rows of its own queries
    shared = [describe_bias(np.full((4, 1, 8), x)) for x in (0.0, 1.0)]
    assert shared[0] != shared[1]

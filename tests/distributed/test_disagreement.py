"""Ranks that disagree all raise the same sentence and go on; torch's ways around a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed
from torch.utils.checkpoint import checkpoint

import ntk_alibi as na
from family_models import make_model
from ntk_alibi.torch import shard
from processes import run

LENGTH = 192


def parts(rank: int, size: int, **kind: Any) -> tuple[list[torch.Tensor], list[torch.Tensor], Any]:
    """Return whole inputs, this rank's parts, and its columns."""
    rng = torch.Generator().manual_seed(0)
    whole = list(torch.randn(3, 1, 4, LENGTH, 16, generator=rng).to(**kind))
    at = torch.arange(LENGTH).tensor_split(size)[rank]
    return whole, [x[:, :, at].clone() for x in whole], at


def sentence(call: Callable[[], Any]) -> str:
    with pytest.raises((TypeError, ValueError, RuntimeError)) as error:
        call()
    return str(error.value)


def of_attention(rank: int, size: int) -> dict[str, str]:
    """Return what this rank hears where rank 1 alone does something else, by what it is."""
    group, second = distributed.group.WORLD, rank == 1
    part = parts(rank, size)[1]
    empty = [x[:, :, :0] if second else x for x in part]

    def attend(bias: Any = None, inputs: Any = part, **options: Any) -> Any:
        return na.attention(*inputs, bias, group=group, **options)

    def with_gradients(*recorded: set[int]) -> Any:
        inputs = [x.clone().requires_grad_(i in recorded[rank]) for i, x in enumerate(part)]
        return attend(na.ALiBi(4), inputs)

    def learned() -> Any:
        slopes = torch.tensor([0.5, 0.1, 0.02, 0.004], requires_grad=not second)
        return attend(na.ALiBi(4, slopes=slopes))

    def autocast() -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=second):
            return attend(na.ALiBi(4))

    def no_grad() -> Any:
        inputs = [x.clone().requires_grad_() for x in part]
        with torch.set_grad_enabled(not second):
            return attend(na.ALiBi(4), inputs)

    numbers = torch.zeros(4, 1, 9 if second else 1)
    only = {True: {"dropout": 0.1}, False: {}}
    named: dict[bool, dict[str, Any]] = {True: {"attn_mask": numbers}, False: {}}
    rotary: Any = na.RoPE(8)
    calls: dict[str, Callable[[], Any]] = {
        "dropout must be 0": lambda: attend(**only[second]),
        "attention() got an unexpected keyword": lambda: attend(**named[second]),
        "bias": lambda: attend(numbers),
        "bias must be the same on all ranks, got None on rank 0 and str": lambda: attend(
            "x" if second else None
        ),
        "bias must be the same": lambda: attend(na.ALiBi(4, exempt=rank)),
        "bias must be the same on all": lambda: attend(torch.full((4, 1, 1), float(rank))),
        "rotary must have query's head_dim 16": lambda: attend(rotary=rotary),
        "heads must be the same": lambda: attend(None, [x[:, : 4 - rank] for x in part]),
        "batch must be the same": lambda: attend(None, [x[: 1 - rank] for x in part]),
        "query and key must have at least one token": lambda: attend(None, empty),
        "whether gradients of query are recorded": lambda: with_gradients({0, 1}, {1}),
        "whether gradients of key or value are": lambda: with_gradients({0, 1}, {0}),
        "whether gradients of bias are recorded": learned,
        "whether gradients of query are": no_grad,
        "dtype must be the same on all ranks": autocast,
        "key_padding_mask": lambda: attend(
            key_padding_mask=torch.ones(1, 9 if second else LENGTH // size)
        ),
        "scale must be": lambda: attend(scale=float("nan") if second else None),
        "query, key, value, scale and bias must give scores": lambda: attend(
            na.ALiBi(4), [x * 1e25 if second else x for x in part]
        ),
    }
    said = {name: sentence(call) for name, call in calls.items()}
    assert attend(na.ALiBi(4)).shape == part[0].shape  # the group works on
    return said


def of_dtensors(rank: int, size: int) -> dict[str, str]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    own = [distributed.new_group([i]) for i in range(size)][rank]
    whole, part, _ = parts(rank, size)
    whole = [x[:, :, : LENGTH - 1].clone().requires_grad_() for x in whole]  # unequal parts
    given = [distribute_tensor(x.detach(), mesh, [Shard(2)]).requires_grad_() for x in whole]
    expected = na.attention(*whole, na.ALiBi(4), skip_tolerance=None)
    (expected**2).sum().backward()
    result = na.attention(*given, na.ALiBi(4))
    (result**2).sum().backward()
    torch.testing.assert_close(result.full_tensor(), expected, rtol=0, atol=5e-6)
    for x, y in zip(given, whole, strict=True):
        assert x.grad is not None
        torch.testing.assert_close(x.grad.full_tensor(), y.grad, rtol=0, atol=5e-5)
    copies = [distribute_tensor(x.detach(), mesh, [Replicate()]) for x in whole]
    mixed = [given[0], part[1] if rank == 1 else given[1], given[2]]
    calls: dict[str, Callable[[], Any]] = {
        "query must be a plain tensor, or a DTensor sharded along": lambda: na.attention(*copies),
        "group or mesh must have the ranks of": lambda: na.attention(*given, group=own),
        "query must be a plain tensor, got a DTensor": lambda: na.attention(*mixed),
        "mesh must be None when group is given": lambda: na.attention(*given, group=own, mesh=mesh),
    }
    return {name: sentence(call) for name, call in calls.items()}


def around(rank: int, size: int) -> dict[str, float]:
    """Return errors of output and gradients inside of torch's ways, relative to their bounds."""
    group, found = distributed.group.WORLD, {}

    def ours(*inputs: Any) -> Any:
        return na.attention(*inputs, na.ALiBi(4), group=group)

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
    numbers = torch.linspace(-1, 1, LENGTH)[None]
    shared = [numbers.clone().requires_grad_() for _ in range(2)]
    whole, part, _ = parts(rank, size)
    (na.attention(*whole, shared[0]) ** 2).sum().backward()
    (na.attention(*part, shared[1], group=group) ** 2).sum().backward()
    expected, result = (x.grad for x in shared)
    found["dense numbers of all queries"] = float(
        (result - expected).norm() / expected.norm() / 1e-5
    )
    return found


def of_models(rank: int, size: int) -> dict[str, str]:
    group, model, second = distributed.group.WORLD, make_model("bloom"), rank == 1
    ids = torch.arange(1, 161)[None] % 50
    whole = {"input_ids": ids, "labels": ids}
    alone = [distributed.new_group([i]) for i in range(size)][rank]
    other = make_model("mpt" if second else "bloom")

    def cached(text: torch.Tensor, of: Any = group, **options: Any) -> Any:
        return model(text, past_key_values=na.ShardedCache(of), **options)

    with na.patch(model, group=group) as patch, torch.no_grad():
        part = patch.shard(whole)
        zigzag = shard(whole, group, layout="zigzag")
        own = part["input_ids"]
        mask = torch.ones_like(ids)
        mask[0, :4] = rank
        calls: dict[str, Callable[[], Any]] = {
            "input_ids must be cut in the layout of the patch, 'contiguous'": lambda: model(
                **(zigzag if second else part)
            ),
            "labels must be those of this rank's part": lambda: model(
                own, labels=ids if second else own
            ),
            "input_ids must have at least one token": lambda: model(own[:, :0] if second else own),
            "input_ids or inputs_embeds must be given": lambda: model(None if second else own),
            "checksum of input_ids must be the same": lambda: cached(ids + rank),
            "checksum of attention_mask must be the": lambda: cached(ids, attention_mask=mask),
            "past_key_values must be a ShardedCache of the group": lambda: cached(ids, alone),
            "the model must be the same on all ranks": lambda: model.train(second)(own),
        }
        said = {name: sentence(call) for name, call in calls.items()}
        model.eval()
        for layer in model.modules():
            if hasattr(layer, "query_key_value"):
                layer.query_key_value.weight.mul_(100.0)
        cache = na.ShardedCache(group)
        model(ids[:, :-1], past_key_values=cache)
        if second:
            cache.held(0)[0].mul_(1e36)
        name = "query, key, value, scale and bias must give scores"
        said[name] = sentence(lambda: model(ids, past_key_values=cache))
        assert model(**part).loss.isfinite()  # the group works on
    with na.patch(model, group=group, layout="zigzag"):
        name = "input_ids must be cut in the layout of the patch, 'zigzag'"
        said[name] = sentence(lambda: model(**part))
    with na.patch(other, group=group):
        name = "the model must be the same on all ranks, got BloomModel of 3 layers"
        said[name] = sentence(lambda: other(own))
    return said


def everything(rank: int, size: int) -> dict[str, Any]:
    work = of_attention, of_dtensors, around, of_models
    return {function.__name__: function(rank, size) for function in work}


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    return run(2, everything, 2)


@pytest.mark.parametrize("kind", ["of_attention", "of_dtensors", "of_models"])
def test_all_ranks_hear_the_same_sentence(kind: str, results: list[dict[str, Any]]) -> None:
    first, second = (found[kind] for found in results)
    assert first == second
    for beginning, said in first.items():
        assert said.removeprefix("on rank 0: ").removeprefix("on rank 1: ").startswith(beginning)


def test_results_and_gradients_hold_inside_of_torchs_ways(results: list[dict[str, Any]]) -> None:
    for found in results:
        assert max(found["around"].values()) < 1, found["around"]


def one_rank_and_one_token(rank: int) -> float:
    """Return the greatest error where every rank has one token, and more ranks than heads."""
    at = slice(rank, rank + 1)
    whole = [x[:, :2, :3] for x in parts(rank, 3)[0]]
    result = na.attention(*(x[:, :, at] for x in whole), na.ALiBi(2), group=distributed.group.WORLD)
    return float((result - na.attention(*whole, na.ALiBi(2))[:, :, at]).abs().max())


def test_more_ranks_than_heads_with_a_token_each() -> None:
    assert max(run(3, one_rank_and_one_token)) < 5e-6


def alone(rank: int) -> float:
    whole = parts(rank, 1)[0]
    result = na.attention(*whole, na.ALiBi(4), group=distributed.group.WORLD)
    return float((result - na.attention(*whole, na.ALiBi(4))).abs().max())


def test_a_group_of_one_is_one_process() -> None:
    assert run(1, alone) == [0.0]


def test_dense_numbers_are_described_by_their_form() -> None:
    from ntk_alibi.distributed.bias_forms import description

    of_rows = [description(np.full((4, 8, 8), x), of_tokens=False) for x in (0.0, 1.0)]
    assert of_rows[0] == of_rows[1]  # each rank has the rows of its own queries
    shared = [description(np.full((4, 1, 8), x), of_tokens=False) for x in (0.0, 1.0)]
    assert shared[0] != shared[1]

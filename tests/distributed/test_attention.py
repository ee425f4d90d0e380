"""Attention over ranks: equal to one process that reads every key, with little communication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed

import ntk_alibi as na
from processes import run

#: float32 sums of a few hundred terms near 1 differ by some ulps of the result.
OUTPUT, GRADIENT = 5e-6, 2e-5


def inputs(
    length: int, *, batch: int = 1, heads: int = 4, key_heads: int = 4, dim: int = 32, seed: int = 0
) -> list[torch.Tensor]:
    """Return random queries, keys and values of a whole sequence, equal on all ranks."""
    rng = torch.Generator().manual_seed(seed)
    query = torch.randn(batch, heads, length, dim, generator=rng)
    key, value = torch.randn(2, batch, key_heads, length, dim, generator=rng)
    return [query, key, value]


def own_columns(length: int, rank: int, size: int) -> torch.Tensor:
    """Return this rank's columns: runs of unequal length."""
    cuts = [length * i * (i + 2) // (size * (size + 2)) for i in range(size + 1)]
    return torch.arange(cuts[rank], cuts[rank + 1])


def gates(batch: int, length: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(3)
    return -torch.rand(batch, 4, length, generator=rng) * 0.2


Case = tuple[dict[str, Any], Callable[[torch.Tensor], Any], dict[str, Any]]

#: Name, arguments of `inputs`, the bias of columns, and keywords of attention.
CASES: dict[str, Case] = {
    "linear": ({}, lambda _: na.ALiBi(4, na.NTK(4.0)), {}),
    "groups of heads, batch": ({"key_heads": 2, "batch": 2}, lambda _: na.ALiBi(4), {}),
    "some heads": ({}, lambda _: na.ALiBi(4, slopes=na.alibi_slopes(8)[3:7]), {}),
    "knee": ({}, lambda _: na.ALiBi(4, na.Knee(100, 8.0)), {}),
    "dynamic, per query": ({}, lambda _: na.ALiBi(4, na.DynamicNTK(2.0, 128, per="query")), {}),
    "dynamic, per text": ({}, lambda _: na.ALiBi(4, na.DynamicNTK(2.0, 128)), {}),
    "table": ({}, lambda _: na.KerpleLog(np.ones(4), np.full(4, 0.5)), {}),
    "power of the distance": ({}, lambda _: na.KerplePower(np.full(4, 0.2), np.full(4, 0.7)), {}),
    "angles": ({}, lambda _: na.Sandwich(4, 64), {}),
    "generalised Gaussian": ({}, lambda _: na.BAM(np.full(4, 0.02), np.full(4, 0.8), 1.0), {}),
    "buckets": ({}, lambda _: na.T5(np.linspace(-1, 1, 128).reshape(4, 32), False), {}),
    "a function": ({}, lambda _: na.DistanceFunction(lambda d: -0.1 * np.sqrt(d), 4), {}),
    "no bias": ({}, lambda _: None, {}),
    "window and sinks": ({}, lambda _: na.ALiBi(4), {"window": 150, "sink": 4}),
    "blocks": ({}, lambda _: na.ALiBi(4), {"causal_block": 90}),
    "both sides": ({}, lambda _: na.ALiBi(4, sides="symmetric"), {"causal": False}),
    "exempt tokens": ({}, lambda _: na.ALiBi(4, exempt=2), {}),
    "a constant for the first": (
        {},
        lambda _: na.BiALiBi(np.full(4, 0.5), np.full(4, 0.1), np.full(4, 0.2)),
        {"causal": False},
    ),
    "no rows": ({"batch": 0}, lambda _: na.ALiBi(4), {}),
    "log-n": ({}, lambda _: na.ALiBi(4), {"log_n": na.LogN(64, 0.5, biased=True)}),
    "rotary": ({}, lambda _: None, {"rotary": na.RoPE(32)}),
    "negative slopes": ({}, lambda _: na.ALiBi(4, slopes=np.full(4, -0.01, np.float32)), {}),
    "gates": ({"batch": 2}, lambda at: na.ForgetGates(gates(2, 600)[..., at]), {}),
    "gates, window and sinks": (
        {},
        lambda at: na.ForgetGates(gates(1, 600)[..., at]),
        {"window": 200, "sink": 4},
    ),
    "gates, window": ({}, lambda at: na.ForgetGates(gates(1, 600)[..., at]), {"window": 200}),
    "everything is read": ({}, lambda _: na.ALiBi(4), {"skip_tolerance": None}),
}


def greatest(difference: torch.Tensor) -> float:
    return float(difference.detach().abs().max()) if difference.numel() else 0.0


def equal_to_one_process(rank: int, size: int) -> dict[str, list[float]]:
    """Return the greatest differences of output, logsumexp and three gradients, by case."""
    found = {}
    for name, (shape, bias, options) in CASES.items():
        whole = [x.requires_grad_() for x in inputs(600, **shape)]
        at = own_columns(600, rank, size)
        part = [x.detach()[:, :, at].clone().requires_grad_() for x in whole]
        exact = {**options, "skip_tolerance": None}
        expected = na.attention(*whole, bias(torch.arange(600)), **exact, return_logsumexp=True)
        group = distributed.group.WORLD
        result = na.distributed.attention(
            *part, bias(at), **options, group=group, return_logsumexp=True
        )
        rng = torch.Generator().manual_seed(9)
        weights = [torch.randn(x.shape, generator=rng) for x in expected]
        sum((x * w).sum() for x, w in zip(expected, weights, strict=True)).backward()
        sum((x * w[:, :, at]).sum() for x, w in zip(result, weights, strict=True)).backward()
        pairs = [*zip(result, expected, strict=True)]
        pairs += [(x.grad, y.grad) for x, y in zip(part, whole, strict=True)]
        found[name] = [greatest(x - y[:, :, at]) for x, y in pairs]
    return found


Results = dict[str, list[Any]]


def in_turn(rank: int, size: int) -> dict[str, Any]:
    work = equal_to_one_process, padded_and_learned, any_order, half_precision, bytes_sent
    return {function.__name__: function(rank, size) for function in (*work, adversary)}


@pytest.fixture(scope="module")
def results() -> Results:
    """Return the results of this module's functions on each of four processes."""
    found = run(4, in_turn, 4)
    return {name: [of_rank[name] for of_rank in found] for name in found[0]}


def test_results_and_gradients_equal_one_process(results: Results) -> None:
    for found in results["equal_to_one_process"]:
        for name, (output, logsumexp, *gradients) in found.items():
            assert max(output, logsumexp) < OUTPUT, name
            assert max(gradients) < GRADIENT, name


def padded_and_learned(rank: int, size: int) -> list[float]:
    query, key, value = inputs(600, batch=2)
    mask = torch.ones(2, 600, dtype=torch.long)
    mask[0, :170] = mask[1, :3] = 0
    key[0, :, :10] = torch.nan  # padding takes part in no arithmetic
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    at = own_columns(600, rank, size)
    slopes = [torch.tensor([0.5, 0.1, 0.02, 0.004], requires_grad=True) for _ in range(2)]
    expected = na.attention(
        query, key, value, na.ALiBi(4, slopes=slopes[0]), key_padding_mask=mask,
        query_positions=positions, key_positions=positions, skip_tolerance=None,
    )  # fmt: skip
    result = na.distributed.attention(
        *(x[:, :, at] for x in (query, key, value)), na.ALiBi(4, slopes=slopes[1]),
        key_padding_mask=mask[:, at], query_positions=positions[:, at],
        key_positions=positions[:, at], group=distributed.group.WORLD,
    )  # fmt: skip
    (expected**2).sum().backward()
    (result**2).sum().backward()
    whole, shared = (x.grad for x in slopes)
    assert whole is not None
    assert shared is not None
    table = torch.outer(torch.tensor([0.1, 0.3, 0.02, 0.01]), -torch.arange(600.0))
    tables = [table.clone().requires_grad_() for _ in range(2)]
    (na.attention(*inputs(600), na.DistanceTable(tables[0])) ** 2).sum().backward()
    part = [x[:, :, at] for x in inputs(600)]
    group = distributed.group.WORLD
    (
        na.distributed.attention(*part, na.DistanceTable(tables[1]), group=group) ** 2
    ).sum().backward()
    of_all, of_ranks = (x.grad for x in tables)
    assert of_all is not None
    assert of_ranks is not None
    return [
        greatest(result - expected[:, :, at]),
        greatest((shared - whole) / whole),
        greatest(of_ranks - of_all) / greatest(of_all),
    ]


def test_padding_is_nowhere_and_slopes_get_the_gradient_of_all_ranks(
    results: dict[str, list[Any]],
) -> None:
    for output, slopes, table in results["padded_and_learned"]:
        assert output < OUTPUT
        assert max(slopes, table) < 1e-5


def any_order(rank: int, size: int) -> list[Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    whole = inputs(512)
    expected = na.attention(*whole, na.ALiBi(4), skip_tolerance=None)
    run_length = 512 // (2 * size)
    both = (rank, 2 * size - 1 - rank)  # zig-zag
    at = torch.cat([torch.arange(i * run_length, (i + 1) * run_length) for i in both])
    group = distributed.group.WORLD
    parts = [
        na.distributed.attention(
            *(x[:, :, at] for x in whole), na.ALiBi(4), query_positions=at, key_positions=at,
            group=group,
        )
        for _ in range(2)
    ]  # fmt: skip
    mesh = init_device_mesh("cpu", (size,))
    tensors = [distribute_tensor(x, mesh, [Shard(2)]) for x in whole]
    sharded: Any = na.distributed.attention(*tensors, na.ALiBi(4))
    own = slice(rank * 512 // size, (rank + 1) * 512 // size)
    by_mesh = na.distributed.attention(*(x[:, :, own] for x in whole), na.ALiBi(4), mesh=mesh)
    return [
        float((parts[0] - expected[:, :, at]).abs().max()),
        bool((parts[0] == parts[1]).all()),
        float((sharded.full_tensor() - expected).abs().max()),
        float((by_mesh - expected[:, :, own]).abs().max()),
    ]


def test_zigzag_dtensors_and_meshes(results: Results) -> None:
    for zigzag, same_bits, sharded, by_mesh in results["any_order"]:
        assert same_bits
        assert max(zigzag, sharded, by_mesh) < OUTPUT


def half_precision(rank: int, size: int) -> float:
    whole = [x.bfloat16() for x in inputs(512)]
    at = own_columns(512, rank, size)
    expected = na.attention(*(x.float() for x in whole), na.ALiBi(4), skip_tolerance=None)
    group = distributed.group.WORLD
    result = na.distributed.attention(*(x[:, :, at] for x in whole), na.ALiBi(4), group=group)
    assert result.dtype == torch.bfloat16
    return float((result.float() - expected[:, :, at]).abs().max())


def test_bfloat16_travels_as_it_is(results: Results) -> None:
    # values up to 4, and two roundings to 8 bits: of the parts and of what they give together
    assert max(results["half_precision"]) < 2 * 4 * 2.0**-8


def bytes_sent(rank: int, size: int) -> tuple[int, float]:
    """Count the bytes of keys and values that this rank sends, and compare with all of them."""
    sent = 0
    plain = distributed.all_to_all_single

    def counted(out: Any, tensor: Any, outs: Any = None, ins: Any = None, **options: Any) -> Any:
        nonlocal sent
        sent += (tensor.numel() - ins[rank]) * tensor.element_size()
        return plain(out, tensor, outs, ins, **options)

    distributed.all_to_all_single = counted  # type: ignore[assignment]
    whole = inputs(4096, heads=8, key_heads=8, dim=16)
    at = torch.arange(4096).tensor_split(size)[rank]
    part = [x[:, :, at] for x in whole]
    na.distributed.attention(*part, na.ALiBi(8), group=distributed.group.WORLD)
    distributed.all_to_all_single = plain
    return sent, 2 * 4 * part[1].numel() * (size - 1)


def test_few_keys_travel(results: Results) -> None:
    sent, ring = (sum(x) for x in zip(*results["bytes_sent"], strict=True))
    # every block that causality needs is half of a ring's bytes
    assert 0 < sent < 0.3 * ring


def adversary(rank: int, size: int) -> float:
    """Replace every block that was not sent by its worst case; return the mass it could have."""
    from ntk_alibi.distributed import rank_call as module

    seen: dict[str, Any] = {}
    plain = module.bounds.needed_blocks

    def kept(tiles: Any, sources: Any, *rest: Any) -> Any:
        seen["wanted"] = plain(tiles, sources, *rest)
        return seen["wanted"]

    module.bounds.needed_blocks = kept  # type: ignore[assignment]
    query, key, value = inputs(2048, heads=8, key_heads=8, dim=16)
    key[:, :, 5] *= 30.0  # a sink, far from most queries
    at = torch.arange(2048).tensor_split(size)[rank]
    part = [x[:, :, at] for x in (query, key, value)]
    na.distributed.attention(*part, na.ALiBi(8), group=distributed.group.WORLD)
    module.bounds.needed_blocks = plain
    slopes = torch.from_numpy(na.alibi_slopes(8)).double()
    scores = query[0, :, at].double() @ key[0].double().mT / 4
    norms = query[0, :, at].double().norm(dim=-1)[..., None] * key[0].double().norm(dim=-1)[:, None]
    distance = (at[:, None] - torch.arange(2048)).double()
    bias = -slopes[:, None, None] * distance
    visible = distance >= 0
    weights = torch.where(visible, scores + bias, -torch.inf)
    lengths = [len(x) for x in torch.arange(2048).tensor_split(size)]
    sent = torch.zeros(8, 2048, dtype=torch.bool)
    for source, wanted in enumerate(seen["wanted"]):
        begin = sum(lengths[:source])
        for head, block in zip(*wanted[0].nonzero(), strict=True):
            first = begin + 64 * int(block)
            sent[head, first : min(first + 64, begin + lengths[source])] = True
    sent[:, at] = True
    read = torch.where(sent[:, None], weights, -torch.inf).logsumexp(-1)
    # the longest query and key of a tile and of a block, aligned, are what the norms allow for
    worst = torch.where(visible & ~sent[:, None], norms / 4 + bias, -torch.inf).logsumexp(-1)
    return float((worst - read).max().exp())


def test_what_does_not_travel_weighs_nothing_in_the_worst_case(
    results: dict[str, list[Any]],
) -> None:
    # the keys have no common part, so that the centre hardly moves the norms
    assert max(results["adversary"]) < 2.0**-24

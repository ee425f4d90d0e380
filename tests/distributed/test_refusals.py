"""What attention refuses over ranks: all ranks raise the same message.

Where only rank 1 does something wrong, no other rank may wait for it. After all sentences the group
works on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.fx.experimental.proxy_tensor import make_fx

import ntk_alibi as na
from processes import run

LENGTH, HEADS, RANKS = 192, 4, 2


class Attention:
    """One of two ranks with a part of a text, and calls of attention on it."""

    def __init__(self, rank: int) -> None:
        self.rank, self.second, self.group = rank, rank == 1, distributed.group.WORLD
        groups = [distributed.new_group([i]) for i in range(RANKS)]
        self.alone, self.other = groups[rank], groups[1 - rank]
        self.mesh = init_device_mesh("cpu", (RANKS,))
        self.named = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("cp",))
        rng = torch.Generator().manual_seed(0)
        self.whole = list(torch.randn(3, 1, HEADS, LENGTH, 16, generator=rng))
        self.part = [x.tensor_split(RANKS, 2)[rank].clone() for x in self.whole]
        self.sharded = [distribute_tensor(x, self.mesh, [Shard(2)]) for x in self.whole]

    def of_second(self, **options: Any) -> dict[str, Any]:
        return options if self.second else {}

    def attend(self, bias: Any = None, inputs: Any = None, **options: Any) -> Any:
        inputs = self.part if inputs is None else inputs
        return na.distributed.attention(*inputs, bias, **{"group": self.group, **options})

    def recorded(self, first: set[int], second: set[int]) -> Any:
        """Attend to inputs, of which each rank records some."""
        recorded = second if self.second else first
        inputs = [x.clone().requires_grad_(i in recorded) for i, x in enumerate(self.part)]
        return self.attend(na.ALiBi(HEADS), inputs)

    def learned(self) -> Any:
        slopes = torch.tensor([0.5, 0.1, 0.02, 0.004], requires_grad=not self.second)
        return self.attend(na.ALiBi(HEADS, slopes=slopes))

    def traced(self) -> Any:
        return make_fx(lambda x: self.attend(na.ALiBi(HEADS), [x, x, x]))(self.part[0])

    def in_contexts(self, autocast: bool = False, grad: bool = True) -> Any:
        inputs = [x.clone().requires_grad_() for x in self.part]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast), torch.set_grad_enabled(grad):
            return self.attend(na.ALiBi(HEADS), inputs)


def _ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


#: The beginnings of the messages that all ranks get, and the calls that attention refuses so.
BY_ATTENTION: dict[str, Callable[[Attention], Any]] = {
    "group must be a torch.distributed.ProcessGroup or a DeviceMesh, got str": lambda here: (
        here.attend(group="gloo")
    ),
    "mesh must have one dimension, such as mesh['cp'], got 2 dimensions": lambda here: here.attend(
        group=init_device_mesh("cpu", (1, 2))
    ),
    "group must contain this process, got one of other processes": lambda here: here.attend(
        group=here.other
    ),
    "group must contain this process, got one of other": lambda here: here.attend(
        group=DeviceMesh("cpu", [1 - here.rank])
    ),
    "on rank 0: mesh must be None when group is given, got 'cp'": lambda here: here.attend(
        mesh="cp"
    ),
    "on rank 0: return_stats must not be given together with group or mesh, got T": lambda here: (
        here.attend(return_stats=True)
    ),
    "on rank 0: key_norms must not be given together with group or mesh, got": lambda here: (
        here.attend(key_norms=na.KeyNorms())
    ),
    "on rank 0: mask must not be given together with": lambda here: here.attend(mask=[[True]]),
    "on rank 0: segment_ids must not be given": lambda here: here.attend(segment_ids=[0] * 5),
    "on rank 0: initial must not be given together with group or mesh, got": lambda here: (
        here.attend(initial=(here.part[0], here.part[0][..., 0]))
    ),
    "on rank 0: query must be a torch tensor with group, got ndarray": lambda here: here.attend(
        inputs=[x.numpy() for x in here.part]
    ),
    "on rank 0: key must be a torch tensor with group, got QuantizedRows": lambda here: here.attend(
        inputs=[here.part[0], *map(na.QuantizedRows.of, here.part[1:])]
    ),
    "group must be None where torch traces, got a group": Attention.traced,
    "on rank 1: query and key must have at least one token on each rank, got 0 an": lambda here: (
        here.attend(inputs=[x[:, :, :0] if here.second else x for x in here.part])
    ),
    "on rank 0: query must have as many tokens as key on each rank, unless query_": lambda here: (
        here.attend(inputs=[here.part[0][:, :, :9], *here.part[1:]])
    ),
    "on rank 0: align must be 'end' with group, got 'start'": lambda here: here.attend(
        align="start"
    ),
    "on rank 0: key_positions must be given with query_positions and group, got N": lambda here: (
        here.attend(query_positions=torch.arange(96))
    ),
    "on rank 0: key_positions must be None with a bias of tokens in order, got th": lambda here: (
        here.attend(na.ForgetGates(-_ones(1, HEADS, 96)), key_positions=torch.arange(96))
    ),
    "on rank 1: value must have key's shape": lambda here: here.attend(
        inputs=[*here.part[:2], here.part[2][..., 1:] if here.second else here.part[2]]
    ),
    "on rank 0: bias must have query's 4 heads, got ALiBi with 8": lambda here: here.attend(
        na.ALiBi(8)
    ),
    "on rank 1: dropout must be 0": lambda here: here.attend(**here.of_second(dropout=0.1)),
    "on rank 1: attention() got an unexpected keyword argument 'attn_mask'": lambda here: (
        here.attend(**here.of_second(attn_mask=_ones(1)))
    ),
    "on rank 1: scale must be": lambda here: here.attend(**here.of_second(scale=float("nan"))),
    "on rank 0: rotary must have query's head_dim 16": lambda here: here.attend(rotary=na.RoPE(8)),
    "on rank 1: key_padding_mask must": lambda here: here.attend(
        key_padding_mask=_ones(1, 9 if here.second else 96)
    ),
    "on rank 1: bias must be broadcastable": lambda here: here.attend(
        torch.zeros(4, 96, 9 if here.second else 1)
    ),
    "bias must be the same on all ranks, got None on rank 0 and str": lambda here: here.attend(
        "x" if here.second else None
    ),
    "bias must be the same on all ranks, got ALiBi of 4 heads, scaling NTK(factor": lambda here: (
        here.attend(na.ALiBi(4, na.NTK(2.0 + here.rank)))
    ),
    "bias must be the same on all ranks, got ALiBi of 4 heads": lambda here: here.attend(
        na.ALiBi(4, exempt=here.rank)
    ),
    "bias must be the same on all ranks, got an array": lambda here: here.attend(
        torch.full((4, 1, 1), float(here.rank))
    ),
    "heads must be the same on all ranks, got 4 on rank 0 and 3 on rank 1": lambda here: (
        here.attend(None, [x[:, : 4 - here.rank] for x in here.part])
    ),
    "batch must be the same on all ranks, got 1 on rank 0 and 0 on rank 1": lambda here: (
        here.attend(None, [x[: 1 - here.rank] for x in here.part])
    ),
    "dtype must be the same on all ranks, got torch.float32 on rank 0 and torch.f": lambda here: (
        here.attend(None, [x.double() if here.second else x for x in here.part])
    ),
    "dtype must be the same on all ranks": lambda here: here.in_contexts(autocast=here.second),
    "whether gradients of query are recorded must be the same on all ranks, got T": lambda here: (
        here.recorded({0, 1}, {1})
    ),
    "whether gradients of key or value are recorded must be the same on all ranks": lambda here: (
        here.recorded({0, 1}, {0})
    ),
    "whether gradients of bias are recorded must be the same on all ranks": Attention.learned,
    "whether gradients of query are recorded must be the same on all ranks": lambda here: (
        here.in_contexts(grad=not here.second)
    ),
    "on rank 1: query, key, value, scale and bias must give scores": lambda here: here.attend(
        na.ALiBi(4), [x * 1e25 if here.second else x for x in here.part]
    ),
    "on rank 0: query must be a plain tensor, or a DTensor sharded along the sequ": lambda here: (
        na.distributed.attention(
            *(distribute_tensor(x, here.mesh, [Replicate()]) for x in here.whole)
        )
    ),
    "on rank 1: query must be a plain tensor, got a DTensor": lambda here: na.distributed.attention(
        here.sharded[0], here.part[1] if here.second else here.sharded[1], here.sharded[2]
    ),
    "on rank 0: value must be on query's mesh, got one on": lambda here: na.distributed.attention(
        *here.sharded[:2],
        distribute_tensor(here.whole[2], here.named, [Shard(2)]),
    ),
    "query must be a plain tensor, got a DTensor: ntk_alibi.distributed.attention": lambda here: (
        na.attention(*here.sharded)
    ),
    "attention() got an unexpected keyword argument 'group': call ntk_alibi.distr": lambda here: (
        na.attention(*here.part, group=here.group)  # type: ignore[call-overload]
    ),
    "group or mesh must be given, unless query, key and value are DTensors, got n": lambda here: (
        na.distributed.attention(*here.part)
    ),
    "on rank 0: group or mesh must have the ranks of the DTensors' mesh, or be No": lambda here: (
        na.distributed.attention(*here.sharded, group=here.alone)
    ),
    "on rank 0: mesh must be None when group is given": lambda here: na.distributed.attention(
        *here.sharded, group=here.alone, mesh=here.mesh
    ),
}


def heard(rank: int) -> dict[str, str]:
    """Return the messages that this rank gets, by their beginnings."""
    here, said = Attention(rank), {}
    for sentence, call in BY_ATTENTION.items():
        try:
            call(here)
            said[sentence] = "nothing was refused"
        except (TypeError, ValueError) as error:
            said[sentence] = str(error)
    assert here.attend(na.ALiBi(HEADS)).shape == here.part[0].shape  # the group works on
    return said


@pytest.fixture(scope="module")
def heard_by() -> list[dict[str, str]]:
    return run(RANKS, heard)


@pytest.mark.parametrize("sentence", BY_ATTENTION)
def test_all_ranks_raise_the_same_message(sentence: str, heard_by: list[dict[str, str]]) -> None:
    first, second = (said[sentence] for said in heard_by)
    assert first == second
    assert first.startswith(sentence)

"""`attention` over a sequence that several ranks share, of tensors and of DTensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from ntk_alibi import _checks
from ntk_alibi._arrays import Array
from ntk_alibi._torch_state import is_tracing
from ntk_alibi.biases.base import BiasObject
from ntk_alibi.distributed.rank_call import RankCall
from ntk_alibi.distributed.ranks import Ranks
from ntk_alibi.fused.call import all_options, checked_call
from ntk_alibi.fused.dropout import NO_DROPOUT
from ntk_alibi.fused.forward import rounded_logsumexp
from ntk_alibi.fused.options import AttentionOptions, with_options
from ntk_alibi.fused.tensors.operator import attend_tensors

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Options of `ntk_alibi.attention` that are refused where ranks share a sequence.
REFUSED = ("initial", "key_norms", "mask", "segment_ids", "query_segment_ids")


@overload
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: BiasObject | Array | None = None,
    *,
    group: Any = None,
    mesh: Any = None,
    return_logsumexp: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> torch.Tensor: ...
@overload
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: BiasObject | Array | None = None,
    *,
    group: Any = None,
    mesh: Any = None,
    return_logsumexp: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[torch.Tensor, torch.Tensor]: ...
@with_options
@torch.compiler.disable(reason="ntk_alibi: values decide which keys ranks exchange")  # type: ignore[untyped-decorator]
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: BiasObject | Array | None = None,
    *,
    group: Any = None,
    mesh: Any = None,
    return_logsumexp: bool = False,
    return_stats: bool = False,
    **options: Unpack[AttentionOptions],
) -> Any:
    """Compute `ntk_alibi.attention` over one sequence that several ranks share.

    All ranks call it together, each with its part of the sequence. Rank 0 has the first tokens,
    rank 1 the next, and so on, unless positions are given. Only keys that may matter are exchanged
    (docs/distributed.md). A wrong argument on one rank raises the same error on all ranks.
    Gradients of a bias's parameters are summed over the ranks.

    Args:
        query: this rank's queries, a tensor (batch, heads, queries, head_dim), or a DTensor that is
            sharded along the sequence.
        key: this rank's keys, (batch, key heads, keys, head_dim).
        value: this rank's values, with the shape of key.
        bias: the bias of the whole sequence; an array and forget gates cover this rank's tokens.
        group: a torch.distributed.ProcessGroup. DTensors need neither group nor mesh.
        mesh: a DeviceMesh with one dimension, in place of group.
        return_logsumexp: whether to return the logsumexp, too.
        return_stats: must be False.
        options: as `ntk_alibi.attention` takes them, without initial, key_norms, mask, segment_ids,
            query_segment_ids, dropout and align="start". key_padding_mask and positions cover this
            rank's tokens.

    Returns:
        The output of this rank's queries, (batch, heads, queries, head_dim), or a pair of output
        and logsumexp, (batch, heads, queries); DTensors if query, key and value are DTensors.

    Raises:
        TypeError, ValueError: an argument is wrong on some rank, or differs between ranks.

    Example: see docs/distributed.md.
    """
    if is_tracing():
        raise ValueError("group must be None where torch traces, got a group")
    groups = [x for x in (group, mesh, getattr(query, "device_mesh", None)) if x is not None]
    if not groups:
        raise ValueError(
            "group or mesh must be given, unless query, key and value are DTensors, got neither"
        )
    ranks, call = Ranks.from_group(groups[0]), RankCall(bias)
    given: dict[str, Any] = {}

    def describe() -> dict[str, Any]:
        given.update(all_options(options))
        dropout = given["dropout"]
        if dropout is not NO_DROPOUT and _checks.finite("dropout", dropout):
            raise ValueError(f"dropout must be 0 where ranks share a sequence, got {dropout!r}")
        given.update(dropout=NO_DROPOUT, seed=None)
        refused = {"return_stats": return_stats or None} | {name: given[name] for name in REFUSED}
        for name, option in refused.items():
            if option is not None:
                raise ValueError(
                    f"{name} must not be given together with group or mesh, "
                    f"got {_checks.briefly(option)}"
                )
        _checks.at_most_one(group=group, mesh=mesh)
        return call.check(_local_tensors(ranks, query, key, value), given)

    every = ranks.agree(describe)
    own = call.own
    if ranks.size == 1 or own.query.numel() == 0:
        alone = checked_call(own.query, own.key, own.value, bias, given, own.way)
        output, logsumexp = attend_tensors(alone)
    else:
        output, logsumexp = call.compute(ranks, every)
    output = _to_dtensor(output, query)
    if not return_logsumexp:
        return output
    return output, _to_dtensor(rounded_logsumexp(logsumexp, own.query), query)


def _local_tensors(ranks: Ranks, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    """Return this rank's tensors: of DTensors, their local parts."""
    given = {"query": query, "key": key, "value": value}
    for name, x in given.items():
        if not isinstance(x, torch.Tensor):  # an array, or quantized rows
            raise TypeError(f"{name} must be a torch tensor with group, got {type(x).__name__}")
    if not all(hasattr(x, "device_mesh") for x in given.values()):
        return query, key, value  # every call refuses DTensors together with other tensors
    from torch.distributed.tensor import Shard

    for name, x in given.items():
        if x.placements not in ((Shard(2),), (Shard(-2),)):
            raise ValueError(
                f"{name} must be a plain tensor, or a DTensor sharded along the sequence, "
                f"(Shard(2),), got one of placements {tuple(x.placements)}: of such a DTensor pass "
                f"{name}.full_tensor()"
            )
        if x.device_mesh != query.device_mesh:
            raise ValueError(f"{name} must be on query's mesh, got one on {x.device_mesh}")
    if not ranks.equals_group(query.device_mesh):
        raise ValueError(
            "group or mesh must have the ranks of the DTensors' mesh, or be None, got other ranks "
            f"than {query.device_mesh}"
        )
    return query.to_local(), key.to_local(), value.to_local()


def _to_dtensor(result: torch.Tensor, query: Any) -> Any:
    """Return this rank's result, as a DTensor if the query is one."""
    if not hasattr(query, "device_mesh"):
        return result
    from torch.distributed.tensor import DTensor, Shard

    shape = (*result.shape[:2], query.shape[2], *result.shape[3:])
    whole = result.new_empty(shape, device="meta")
    sizes: dict[str, Any] = {"shape": whole.shape, "stride": whole.stride()}
    return DTensor.from_local(result, query.device_mesh, [Shard(2)], run_check=False, **sizes)

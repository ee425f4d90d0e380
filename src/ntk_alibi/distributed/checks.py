"""Checks of the arguments of attention over several ranks."""

from __future__ import annotations

from typing import Any

from ntk_alibi import _arrays, _checks, _torch_state
from ntk_alibi.biases import checks as bias_checks


def tensors(**values: Any) -> None:
    """Refuse what cannot travel: arrays, quantized rows and traced tensors."""
    for name, value in values.items():
        if not _arrays.is_tensor(value):
            raise TypeError(f"{name} must be a torch tensor with group, got {type(value).__name__}")
    if _torch_state.is_tracing():
        raise ValueError("group must be None where torch traces, got a group")


def without_group(given: dict[str, Any]) -> None:
    """Refuse arguments that attention over several ranks does not have; others are None."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} must not be given together with group or mesh, got {value!r}")


def own_tokens(queries: int, keys: int, at_queries: Any, at_keys: Any, align: Any) -> None:
    """Check that the queries of a rank are its tokens, or have positions."""
    if min(queries, keys) < 1:
        raise ValueError(
            f"query and key must have at least one token on each rank, got {queries} and {keys}"
        )
    if align != "end":
        raise ValueError(f"align must be 'end' with group, got {align!r}")
    if at_queries is not None and at_keys is None:
        raise ValueError("key_positions must be given with query_positions and group, got None")
    if queries != keys and at_queries is None:
        raise ValueError(
            "query must have as many tokens as key on each rank, unless query_positions and "
            f"key_positions are given, got {queries} and {keys}"
        )


def bias_of_rank(bias: Any, heads: int, of_tokens: bool, placed: bool) -> None:
    """Check a bias's heads; prefix sums follow the order of ranks."""
    if hasattr(bias, "num_heads"):
        bias_checks.heads_of_query(bias, heads)
    if of_tokens and placed:
        raise ValueError(
            f"key_positions must be None with a bias of tokens in order, got them with {bias!r}"
        )


def local_tensors(
    query: Any, key: Any, value: Any, ranks: Any, given: dict[str, Any]
) -> tuple[Any, Any, Any]:
    """Return this rank's tensors: of DTensors, their local parts.

    Args:
        query: the queries.
        key: the keys.
        value: the values.
        ranks: the ranks of the call.
        given: group and mesh as the caller gave them.

    Raises:
        TypeError, ValueError: group and mesh are both given; some are DTensors and some are not, or
            they are not sharded along the sequence on the same mesh, that of the ranks.
    """
    _checks.at_most_one(**given)
    every = {"query": query, "key": key, "value": value}
    sharded = [name for name, x in every.items() if hasattr(x, "device_mesh")]
    if not sharded:
        return query, key, value
    from torch.distributed.tensor import Shard

    if len(sharded) < 3:
        _checks.plain(sharded[0], every[sharded[0]])
    for name, x in every.items():
        if x.placements not in ((Shard(2),), (Shard(-2),)):
            raise ValueError(
                f"{name} must be a plain tensor, or a DTensor sharded along the sequence, "
                f"(Shard(2),), got one of placements {tuple(x.placements)}: of such a DTensor pass "
                f"{name}.full_tensor()"
            )
        if x.device_mesh != query.device_mesh:
            raise ValueError(f"{name} must be on query's mesh, got one on {x.device_mesh}")
    if not ranks.are_those_of(query.device_mesh):
        raise ValueError(
            "group or mesh must have the ranks of the DTensors' mesh, or be None, got other ranks "
            f"than {query.device_mesh}"
        )
    return query.to_local(), key.to_local(), value.to_local()


def wrapped(result: Any, query: Any) -> Any:
    """Return a result of this rank as a DTensor if the query is one."""
    if not hasattr(query, "device_mesh"):
        return result
    from torch.distributed.tensor import DTensor, Shard

    shape = (*result.shape[:2], query.shape[2], *result.shape[3:])
    whole = result.new_empty(shape, device="meta")
    return DTensor.from_local(
        result,
        query.device_mesh,
        [Shard(2)],
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )

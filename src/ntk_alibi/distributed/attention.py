"""Attention over the tokens of all ranks: the part of this rank, and blocks that others send.

Keys that a rank's queries cannot notice do not travel (bounds.py). docs/distributed.md explains the
exchange and what it guarantees.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks, _core, _torch_state
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.distributed import bounds, checks
from ntk_alibi.distributed.bias_forms import KernelFormBias, description, detached, numbers_of
from ntk_alibi.distributed.exchange import Plan, arrive, send, tie
from ntk_alibi.distributed.ranks import Ranks
from ntk_alibi.distributed.sequence import Sequence
from ntk_alibi.fused.call import check_rotary, checked_call, checked_numbers
from ntk_alibi.fused.forward import rounded_logsumexp
from ntk_alibi.fused.merge import merge
from ntk_alibi.masks import checked_key_padding_mask, checked_positions
from ntk_alibi.positions.log_n import KnownFactors, log_n_of
from ntk_alibi.torch.operator import attend_tensors

#: Positions back of each query whose own keys give the lower bound of its sum.
NEAR = 128


@torch.compiler.disable(reason="ntk_alibi: which keys travel between ranks depends on numbers")  # type: ignore[untyped-decorator]
def attention_over_ranks(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    options: dict[str, Any],
    scale: Any,
    skip_tolerance: Any,
    mask: tuple[Any, ...],
    *,
    group: Any,
    mesh: Any,
    refused: dict[str, Any],
    check: Callable[[], None],
    return_logsumexp: bool,
) -> Any:
    """Compute `attention` over the tokens of all ranks; the arguments are this rank's.

    `refused` holds arguments that must be None here, by name; `check` checks the others.
    """
    given = {"group": group, "mesh": mesh}
    on = [x for x in (*given.values(), getattr(query, "device_mesh", None)) if x is not None]
    ranks = Ranks.of(on[0])

    def tensors() -> tuple[Any, Any, Any]:
        check()
        checks.without_group(refused)
        return checks.local_tensors(query, key, value, ranks, given)

    call = _RankCall(tensors, bias, options, scale, skip_tolerance, mask)
    every = ranks.agree(call.describe)
    if ranks.size == 1 or call.query.numel() == 0:
        own = call.query, call.key, call.value
        output, logsumexp = _attend(*own, bias, scale, skip_tolerance, mask, **options)
    else:
        output, logsumexp = call.over(ranks, every)
    output = checks.wrapped(output, query)
    if not return_logsumexp:
        return output
    return output, checks.wrapped(rounded_logsumexp(logsumexp, call.query), query)


class _RankCall:
    """A call of attention on one of several ranks.

    `tensors` returns query, key and value, or raises what is wrong with them.
    """

    def __init__(
        self,
        tensors: Callable[[], tuple[Any, Any, Any]],
        bias: Any,
        options: dict[str, Any],
        scale: Any,
        skip_tolerance: Any,
        mask: tuple[Any, ...],
    ) -> None:
        self._tensors = tensors
        self.bias, self.options = bias, options
        self._scale, self.tolerance, self._mask = scale, skip_tolerance, mask

    def describe(self) -> dict[str, Any]:
        """Check this rank's arguments, and return what all ranks must have in common."""
        given, options = self._tensors(), self.options
        checks.tensors(**dict(zip(("query", "key", "value"), given, strict=True)))
        _checks.attention_inputs(*given)
        self.query, self.key, self.value = _torch_state.in_autocast_dtype(*given)
        query, key = self.query, self.key
        numbers = self._scale, self.tolerance, *self._mask
        shapes = query.shape, key.shape, self.value.shape
        problem, self.scale, _, _ = checked_numbers(query.dtype, *shapes, True, *numbers)
        self.mask = problem.mask
        batch, queries, keys = query.shape[0], query.shape[2], key.shape[2]
        at_queries, at_keys = options["query_positions"], options["key_positions"]
        checks.own_tokens(queries, keys, at_queries, at_keys, options["align"])
        self.padding = checked_key_padding_mask(options["key_padding_mask"], batch, keys)
        at_queries = checked_positions("query_positions", at_queries, batch, queries)
        at_keys = checked_positions("key_positions", at_keys, batch, keys)
        self.positions = at_queries, at_keys
        if options["rotary"] is not None:
            causal = not self.mask.sees_ahead
            check_rotary(options["rotary"], query.shape[3], causal=causal)
        of_tokens = getattr(self.bias, "of_tokens", False)
        checks.bias_of_rank(self.bias, query.shape[1], of_tokens, at_keys is not None)
        self.log_n = log_n_of(options["log_n"])
        return {
            "batch": batch,
            "heads": query.shape[1],
            "heads of keys": key.shape[1],
            "head_dim": query.shape[3],
            "dtype": str(query.dtype),
            "mask": str(self.mask),
            "scale": self.scale,
            "skip_tolerance": self.tolerance,
            "bias": description(self.bias, of_tokens=of_tokens),
            "rotary": repr(options["rotary"]),
            "log_n": repr(getattr(self.log_n, "to_config", lambda: "known")()),
            "whether there are positions": at_keys is not None,
            "whether gradients of query are recorded": _recorded(query),
            "whether gradients of key or value are recorded": _recorded(key, self.value),
            "whether gradients of bias are recorded": _recorded(*self._parameters),
            "own keys": keys,
            "own padding": self.padding is not None,
            "own rows of positions": 1 if at_keys is None else len(at_keys),
        }

    @property
    def _parameters(self) -> tuple[Any, ...]:
        return getattr(self.bias, "parameters", (self.bias,))

    def over(self, ranks: Ranks, every: list[dict[str, Any]]) -> tuple[Any, Any]:
        """Return output and float64 logsumexp of this rank's queries."""
        query, key = self.query, self.key
        shape: Any = query.shape[:3]
        self.sequence = sequence = Sequence.gathered(
            ranks, every, shape, self.mask, self.padding, self.positions, query.device
        )
        self.kernel = sequence.bias(self.bias, query)
        self.factors = None
        if self.log_n is not None:
            wide = _arrays.wide_dtype(query)
            factors = self.log_n.factors(sequence.problem, query)
            self.factors = _arrays.as_tensor(factors, query, wide)
            if self.log_n.biased:
                self.kernel = self.kernel.times(self.factors)
        share = _core.dropped_share(self.tolerance)
        with torch.no_grad():
            plan = self._plan(share / 2)
        # Half of the share was the exchange's; the local and the remote part have a quarter each.
        self._part_tolerance = share / 4 or None
        batch, key_heads, keys, channels = key.shape
        tokens = torch.cat([key, self.value], -1).reshape(batch * key_heads, keys, 2 * channels)
        arriving = {"keys": send(plan, "keys", tokens)}
        if self.kernel.sums is not None:
            sums = self.kernel.sums.unflatten(1, (key_heads, -1)).flatten(0, 1)
            arriving["sums"] = send(plan, "sums", sums.transpose(1, 2).contiguous())
        arrived, output, logsumexp = ranks.together(lambda: self._results(plan, arriving))
        if _recorded(query, key, self.value, *self._parameters):
            output, logsumexp = (tie(x, *arrived.values()) for x in (output, logsumexp))
        return output, logsumexp

    def _results(self, plan: Plan, arriving: dict[str, Any]) -> tuple[dict[str, Any], Any, Any]:
        """Return the blocks that arrived, and the output and logsumexp over all keys."""
        output, logsumexp = self._local(self.kernel, self._part_tolerance)
        arrived = {name: arrive(plan, name, x) for name, x in arriving.items()}
        return arrived, *self._with_remote(plan, arrived, output, logsumexp)

    def _local(
        self, kernel: KernelBias, tolerance: Any, window: int | None = None
    ) -> tuple[Any, Any]:
        """Attend to this rank's keys, within a narrower window if one is given."""
        sequence, options = self.sequence, self.options
        if kernel.dense is not None and kernel.dense.ndim and kernel.dense.shape[-1] > 1:
            kernel = kernel._replace(dense=kernel.dense[..., sequence.own])
        absolute = self.mask.causal_block or self.mask.sink or kernel.exempt or options["rotary"]
        at_queries = at_keys = None
        if sequence.placed or absolute:
            at_queries = sequence.problem.query_positions
            at_keys = np.ascontiguousarray(sequence.problem.key_positions[:, sequence.own])
        mask = self.mask
        if window is not None:
            mask = mask._replace(window=min(window, mask.window or window), sink=0)
        placed = {
            **options,
            "key_padding_mask": self.padding,
            "query_positions": at_queries,
            "key_positions": at_keys,
            "log_n": None if self.factors is None else KnownFactors(self.factors),
        }
        return _attend(
            self.query,
            self.key,
            self.value,
            KernelFormBias(kernel, self.query.shape[1]),
            self.scale,
            tolerance,
            mask,
            **placed,
        )

    def _plan(self, share: float) -> Plan:
        """Agree on the blocks that travel; others hold at most `share` of each query's sum."""
        sequence, query, key = self.sequence, self.query, self.key
        numbers = numbers_of(self.kernel)
        bound = bounds.BiasBounds(numbers, sequence.block)
        proven = share > 0.0 and bound.proven and self.options["rotary"] is None
        sources, longest = sequence.key_blocks(key, numbers.sums)
        lower = query.new_full(query.shape[:3], -np.inf, dtype=torch.float64)
        if proven:
            # Scores that a narrower window refuses prove nothing; those of all keys may be right.
            with suppress(ValueError):
                lower = self._local(detached(self.kernel), 0.0, NEAR)[1]
        tiles = sequence.query_tiles(
            query, self.factors, lower, sources, longest, self.scale, numbers.sums
        )
        wanted = bounds.needed_blocks(tiles, sources, bound, self.mask, share if proven else 0.0)
        own = -(-key.shape[2] // sequence.block)
        return Plan.agreed(sequence.ranks, sequence.block, wanted, own)

    def _with_remote(
        self, plan: Plan, arrived: dict[str, Any], output: Any, logsumexp: Any
    ) -> tuple[Any, Any]:
        """Return the results of this rank's keys, continued over the blocks that arrived."""
        batch, key_heads = self.key.shape[:2]
        heads = self.query.shape[1] // max(key_heads, 1)
        every = range(self.query.shape[1])
        parts: list[list[Any]] = [
            [tuple(x[b : b + 1, h : h + 1] for x in (output, logsumexp)) for h in every]
            for b in range(batch)
        ]
        groups = _rows_by_blocks(plan.received)
        if not groups:
            return output, logsumexp
        for (b, blocks), members in _by_batch(groups, key_heads).items():
            rows = [row for row, _ in members]
            own = [row * heads + i for row in rows for i in range(heads)]
            before: Any = tuple(torch.cat([parts[b][h][i] for h in own], 1) for i in (0, 1))
            found = self._remote(plan, arrived, b, blocks, members, own, before)
            for place, h in enumerate(own):
                parts[b][h] = tuple(x[:, place : place + 1] for x in found)
        joined = [[torch.cat([p[i] for p in row], 1) for row in parts] for i in (0, 1)]
        return torch.cat(joined[0]), torch.cat(joined[1])

    def _remote(
        self,
        plan: Plan,
        arrived: dict[str, Any],
        b: int,
        blocks: tuple[tuple[int, int], ...],
        members: list[tuple[int, Any]],
        own: list[int],
        before: tuple[Any, Any],
    ) -> tuple[Any, Any]:
        """Continue the results `before` of some heads of a row over the same blocks of each.

        Args:
            plan: the plan.
            arrived: the blocks of all rows.
            b: number of the batch row.
            blocks: rank and number of each block.
            members: key heads, and where their blocks are in `arrived`.
            own: the heads of queries that read them.
            before: output and logsumexp of these heads over this rank's keys.
        """
        sequence, size = self.sequence, plan.block
        starts = np.cumsum([0, *sequence.lengths])
        places = [starts[rank] + block * size + np.arange(size) for rank, block in blocks]
        limits = [np.full(size, starts[rank + 1]) for rank, _ in blocks]
        columns = np.concatenate(places)
        inside = columns < np.concatenate(limits)
        columns = np.minimum(columns, starts[-1] - 1)
        positions, real = sequence.part(columns, b)
        shown = (inside & (real > 0)).view(np.uint8)
        tokens = torch.stack([arrived["keys"][at].flatten(0, 1) for _, at in members])[None]
        key, value = tokens.split(self.key.shape[3], dim=-1)
        query = self.query[b : b + 1, own]
        kernel = self.kernel.of_rows(slice(b, b + 1)).of_heads(own)
        at_queries = sequence.problem.query_positions
        at_queries = at_queries[b if len(at_queries) > 1 else 0][None]
        at_keys: Any = positions[None]
        if kernel.dense is not None and kernel.dense.ndim and kernel.dense.shape[-1] > 1:
            kernel = kernel._replace(dense=kernel.dense[..., columns])
        if kernel.sums is not None:
            theirs = [arrived["sums"][at].flatten(0, 1).T for _, at in members]
            kernel, key, value, shown, at_queries, at_keys = self._with_sums(
                kernel, torch.cat(theirs)[None], (b, own), key, value, shown, at_queries, at_keys
            )
        factors = self.factors
        if factors is not None:
            factors = factors[b : b + 1] if len(factors) > 1 else factors
            factors = factors[:, own] if factors.shape[1] > 1 else factors
        output, logsumexp = _attend(
            query,
            key,
            value,
            KernelFormBias(kernel, len(own)),
            self.scale,
            self._part_tolerance,
            self.mask,
            key_padding_mask=None if shown.all() else shown[None],
            query_positions=at_queries,
            key_positions=at_keys,
            rotary=self.options["rotary"],
            log_n=None if factors is None else KnownFactors(factors),
            initial=before,
        )
        return merge((before[0], output), (before[1], logsumexp))

    def _with_sums(
        self,
        kernel: KernelBias,
        theirs: Any,
        of: tuple[int, list[int]],
        key: Any,
        value: Any,
        shown: NDArray[np.uint8],
        at_queries: Any,
        at_keys: Any,
    ) -> tuple[Any, ...]:
        """Return the arguments of a call with prefix sums, whose queries must be the last keys.

        Without a window, this rank's keys follow the others, hidden. With one, the bias becomes
        dense numbers, since columns would not be positions.
        """
        own = kernel.sums
        if self.mask.limited:
            dense = own[..., None] - theirs[:, :, None, :]
            kernel = kernel._replace(sums=None, dense=dense.to(self.query.dtype))
            return kernel, key, value, shown, at_queries, at_keys
        b, heads = of
        group = self.query.shape[1] // self.key.shape[1]
        rows = [h // group for h in heads[::group]]
        kernel = kernel._replace(sums=torch.cat([theirs, own], -1))
        key = torch.cat([key, self.key[b : b + 1, rows].detach()], 2)
        value = torch.cat([value, self.value[b : b + 1, rows].detach()], 2)
        hidden = np.zeros(own.shape[-1], np.uint8)
        return kernel, key, value, np.concatenate([shown, hidden]), None, None


def _attend(*arguments: Any, **options: Any) -> tuple[Any, Any]:
    return attend_tensors(checked_call(*arguments, **options, torch=True))


def _recorded(*arrays: Any) -> bool:
    return _torch_state.is_recording() and _arrays.require_grad(*arrays)


def _rows_by_blocks(received: torch.Tensor) -> dict[int, tuple[tuple[Any, ...], torch.Tensor]]:
    """Return for each row that gets blocks their ranks and numbers, and their places."""
    found = {}
    for row in received[:, 1].unique().tolist():
        places = (received[:, 1] == row).nonzero().flatten()
        blocks = tuple(map(tuple, received[places][:, [0, 2]].tolist()))
        found[row] = (blocks, places)
    return found


def _by_batch(
    groups: dict[int, tuple[tuple[Any, ...], torch.Tensor]], key_heads: int
) -> dict[tuple[int, tuple[Any, ...]], list[tuple[int, Any]]]:
    """Join the key heads of a batch row that get the same blocks."""
    joined: dict[tuple[int, tuple[Any, ...]], list[tuple[int, Any]]] = {}
    for row, (blocks, places) in groups.items():
        b, head = divmod(row, key_heads)
        joined.setdefault((b, blocks), []).append((head, places))
    return joined

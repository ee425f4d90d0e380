"""A call of attention on one of several ranks, over its keys and the blocks that others send.

Keys that cannot change a rank's results are not sent (bounds.py). benchmarks/results/distributed.md
describes the exchange and what it guarantees.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from ntk_alibi import _checks, _core
from ntk_alibi._backends import backend_of
from ntk_alibi._torch_state import Way, is_recorded, is_transformed, way_of
from ntk_alibi.biases.base import check_fits
from ntk_alibi.distributed import bounds
from ntk_alibi.distributed.exchange import Plan, keep_in_graph, receive_blocks, send_blocks
from ntk_alibi.distributed.ranks import Ranks
from ntk_alibi.distributed.sequence import Sequence, describe_bias, without_positions
from ntk_alibi.fused.call import checked_call
from ntk_alibi.fused.merge import merge
from ntk_alibi.fused.tensors.operator import attend_tensors
from ntk_alibi.masks import (
    AT_END,
    Cut,
    Problem,
    checked_key_padding_mask,
    checked_positions,
)
from ntk_alibi.positions.log_n import as_log_n

#: A rank's keys within this distance of a query give the lower bound of the query's logsumexp.
NEAR = 128

#: Options that tell which tokens are real, and their positions.
TOKEN_OPTIONS = ("key_padding_mask", "query_positions", "key_positions")


class RankCall:
    """A call of attention on one of several ranks.

    Attributes:
        own: the checked call of this rank's tensors, without bias, padding and positions.
    """

    def __init__(self, bias: Any) -> None:
        self._bias = bias
        self._parameters = getattr(bias, "parameters", (bias,))

    def check(self, tensors: tuple[Any, Any, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Check this rank's arguments, and return what all ranks must have in common."""
        if is_transformed(maps=True):
            raise ValueError(
                "group must be None under transforms of torch.func and in forward mode, got a "
                "group: ranks exchange values and first gradients of autograd"
            )
        way = way_of(*tensors, bias=self._bias)
        way = Way.OPERATOR if way is Way.CORE else way  # the blocks of other ranks are in a graph
        alone = {**options, "log_n": None, "align": AT_END, **dict.fromkeys(TOKEN_OPTIONS)}
        self.own = own = checked_call(*tensors, None, alone, way)
        batch, heads, queries, keys = own.problem.shape
        if min(queries, keys) < 1:
            raise ValueError(
                f"query and key must have at least one token on each rank, got {queries} and {keys}"
            )
        _checks.check_equal("align", options["align"], "end", "with group")
        real, query_positions, key_positions = (options[name] for name in TOKEN_OPTIONS)
        if query_positions is not None and key_positions is None:
            raise ValueError("key_positions must be given with query_positions and group, got None")
        if queries != keys and query_positions is None:
            raise ValueError(
                "query must have as many tokens as key on each rank, unless query_positions and "
                f"key_positions are given, got {queries} and {keys}"
            )
        self._padding = checked_key_padding_mask(real, batch, keys)
        at_queries = checked_positions("query_positions", query_positions, batch, queries)
        at_keys = checked_positions("key_positions", key_positions, batch, keys)
        self._positions = at_queries, at_keys
        bias, per_token = self._bias, getattr(self._bias, "per_token", False)
        if hasattr(bias, "num_heads"):
            check_fits(bias, heads)
        if per_token and at_keys is not None:
            raise ValueError(
                "key_positions must be None with a bias of tokens in order, "
                f"got them with {_checks.briefly(bias)}"
            )
        self._log_n = as_log_n(options["log_n"])
        return {
            "batch": batch,
            "heads": heads,
            "heads of keys": own.key.shape[1],
            "head_dim": own.query.shape[3],
            "dtype": str(own.query.dtype),
            "mask": str(own.problem.mask),
            "scale": own.scale,
            "skip_tolerance": own.skip_tolerance,
            "bias": describe_bias(bias),
            "rotary": repr(options["rotary"]),
            "log_n": repr(self._log_n),
            "whether there are positions": at_keys is not None,
            "whether gradients of query are recorded": is_recorded(own.query),
            "whether gradients of key or value are recorded": is_recorded(own.key, own.value),
            "whether gradients of bias are recorded": is_recorded(*self._parameters),
            "own keys": keys,
            "own padding": self._padding is not None,
            "own rows of positions": 1 if at_keys is None else len(at_keys),
        }

    def compute(self, ranks: Ranks, every: list[dict[str, Any]]) -> tuple[Any, Any]:
        """Return the output and the float64 logsumexp of this rank's queries."""
        query, key, value = self.own.query, self.own.key, self.own.value
        self._sequence = sequence = Sequence.gather(
            ranks, every, self.own.problem, self._padding, self._positions, query.device
        )
        kernel, factors = sequence.kernel_bias(self._bias, query), None
        if self._log_n is not None:
            factors = self._log_n.factors(sequence.problem, query)
            kernel = kernel.times(factors) if self._log_n.biased else kernel
        share = _core.dropped_share(self.own.skip_tolerance)
        # Half of the share is for blocks that are not sent, a quarter each for blocks that the
        # kernel skips among this rank's keys and among received ones.
        self._call = self.own._replace(
            bias=kernel, factors=factors, skip_tolerance=share / 4 or None, rule=None
        )
        with torch.no_grad():
            plan = self._plan(share / 2)
        batch, key_heads, keys, channels = key.shape
        tokens = torch.cat([key, value], -1).reshape(batch * key_heads, keys, 2 * channels)
        arriving = {"keys": send_blocks(plan, "keys", tokens)}
        if kernel.sums is not None:
            sums = kernel.sums.unflatten(1, (key_heads, -1)).flatten(0, 1)
            arriving["sums"] = send_blocks(plan, "sums", sums.transpose(1, 2).contiguous())
        arrived, output, logsumexp = ranks.run_together(lambda: self._attend(plan, arriving))
        if is_recorded(query, key, value, *self._parameters):
            output, logsumexp = (keep_in_graph(x, *arrived.values()) for x in (output, logsumexp))
        return output, logsumexp

    def _plan(self, share: float) -> Plan:
        """Agree on the blocks to send; all others have at most `share` of each query's weights."""
        sequence, call = self._sequence, self._call
        bound = bounds.BiasBounds(call.bias, sequence.block)
        proven = share > 0.0 and bound.proven and call.rotary is None
        sources, longest = sequence.key_blocks(call.key, bound.sums)
        lower = call.query.new_full(call.query.shape[:3], -np.inf, dtype=torch.float64)
        if proven:
            # A narrower window may raise where the call does not; then nothing is proven.
            with suppress(ValueError):
                lower = self._attend_own_keys(skip_tolerance=0.0, window=NEAR)[1]
        tiles = sequence.query_tiles(
            call.query, call.factors, lower, sources, longest, call.scale, bound.sums
        )
        share = share if proven else 0.0
        incoming = bounds.needed_blocks(tiles, sources, bound, call.problem.mask, share)
        own = -(-call.key.shape[2] // sequence.block)
        return Plan.agree(sequence.ranks, sequence.block, incoming, own)

    def _attend(self, plan: Plan, arriving: dict[str, Any]) -> tuple[dict[str, Any], Any, Any]:
        """Return the received blocks, and the output and logsumexp over all keys."""
        own = self._attend_own_keys(skip_tolerance=self._call.skip_tolerance)
        arrived = {name: receive_blocks(plan, name, x) for name, x in arriving.items()}
        return arrived, *self._attend_received(plan, arrived, *own)

    def _attend_own_keys(
        self, *, skip_tolerance: float | None, window: int | None = None
    ) -> tuple[Any, Any]:
        """Attend to this rank's keys, with a narrower window if one is given."""
        sequence, kernel, mask = self._sequence, self._call.bias, self._call.problem.mask
        cut = Cut(keys=sequence.own_columns)
        problem = sequence.problem.cut(cut)
        if kernel.sums is None:  # prefix sums cover this rank's keys only
            kernel = kernel.cut(cut, sequence.problem.shape)
        rotated = self._call.rotary is not None
        absolute = mask.causal_block or mask.sink or kernel.exempt or rotated
        if not sequence.has_positions and not absolute:
            problem = without_positions(problem)
        if window is not None:
            mask = mask._replace(window=min(window, mask.window or window), sink=0)
        problem = problem._replace(mask=mask)
        return attend_tensors(
            self._call._replace(bias=kernel, problem=problem, skip_tolerance=skip_tolerance)
        )

    def _attend_received(
        self, plan: Plan, arrived: dict[str, Any], output: Any, logsumexp: Any
    ) -> tuple[Any, Any]:
        """Merge the results over this rank's keys with results over the received blocks."""
        (batch, heads), group = self._call.problem.shape[:2], self._call.group
        groups = _group_by_blocks(plan.received, self._call.key.shape[1])
        if not groups:
            return output, logsumexp
        parts: list[list[Any]] = [
            [tuple(x[b : b + 1, h : h + 1] for x in (output, logsumexp)) for h in range(heads)]
            for b in range(batch)
        ]
        for (b, blocks), members in groups.items():
            own = [row * group + i for row in members for i in range(group)]
            before: Any = tuple(torch.cat([parts[b][h][i] for h in own], 1) for i in (0, 1))
            found = self._attend_blocks(arrived, b, blocks, members, own, before)
            for index, h in enumerate(own):
                parts[b][h] = tuple(x[:, index : index + 1] for x in found)
        joined = [[torch.cat([p[i] for p in row], 1) for row in parts] for i in (0, 1)]
        return torch.cat(joined[0]), torch.cat(joined[1])

    def _attend_blocks(
        self,
        arrived: dict[str, Any],
        b: int,
        blocks: tuple[tuple[int, int], ...],
        members: dict[int, torch.Tensor],
        own: list[int],
        before: tuple[Any, Any],
    ) -> tuple[Any, Any]:
        """Attend to received blocks that several heads share, and merge the results with `before`.

        Args:
            arrived: the blocks of all rows.
            b: index of the batch row.
            blocks: rank and index of each block.
            members: for each key head, where its blocks are in `arrived`.
            own: the query heads that read them.
            before: output and logsumexp of these heads over this rank's keys.
        """
        call, whole, size = self._call, self._sequence.problem, self._sequence.block
        starts = np.cumsum([0, *self._sequence.lengths])
        columns = np.concatenate(
            [starts[rank] + block * size + np.arange(size) for rank, block in blocks]
        )
        shown = columns < np.repeat([starts[rank + 1] for rank, _ in blocks], size)
        columns = np.minimum(columns, starts[-1] - 1)
        if whole.key_padding_mask is not None:
            shown &= whole.key_padding_mask[b, columns] > 0
        cut = Cut(slice(b, b + 1), own)
        at_queries = cut.of(whole.query_positions, "B")
        at_keys = cut.of(whole.key_positions, "B")[:, columns]
        tokens = torch.stack([arrived["keys"][at].flatten(0, 1) for at in members.values()])[None]
        key, value = tokens.split(call.key.shape[3], dim=-1)
        kernel = call.bias.cut(cut, whole.shape)
        if kernel.dense is not None and kernel.dense.ndim and kernel.dense.shape[-1] > 1:
            kernel = kernel._replace(dense=kernel.dense[..., columns])
        if kernel.sums is not None:
            sums = torch.cat([arrived["sums"][at].flatten(0, 1).T for at in members.values()])[None]
            if call.problem.mask.limited:  # columns would not be positions
                dense = kernel.sums[..., None] - sums[:, :, None, :]
                kernel = kernel._replace(sums=None, dense=dense.to(call.query.dtype))
            else:  # queries must be the last keys: this rank's keys follow the others, hidden
                own_key, own_value = (
                    x[cut.rows, list(members)].detach() for x in (call.key, call.value)
                )
                key, value = torch.cat([key, own_key], 2), torch.cat([value, own_value], 2)
                shown = np.append(shown, np.zeros(own_key.shape[2], np.bool_))
                kernel = kernel._replace(sums=torch.cat([sums, kernel.sums], -1))
                at_queries = at_keys = None
        query = cut.of(call.query, "bh")
        real = None if shown.all() else shown.view(np.uint8)[None]
        shape = (*query.shape[:3], key.shape[2])
        problem = Problem(shape, call.problem.mask, real, at_queries, at_keys, at_keys is not None)
        known = backend_of(query).convert(before[1], "float64")
        output, logsumexp = attend_tensors(
            call.with_inputs(
                query,
                key,
                value,
                bias=kernel,
                problem=problem,
                factors=cut.of(call.factors, "BH"),
                initial_logsumexp=known,
            )
        )
        return merge((before[0], output), (before[1], logsumexp))


def _group_by_blocks(
    received: torch.Tensor, key_heads: int
) -> dict[tuple[int, tuple[Any, ...]], dict[int, torch.Tensor]]:
    """Group the key heads of each batch row that receive the same blocks.

    Args:
        received: rank, row and block of each block, in the order of arrival.
        key_heads: number of key heads; rows are pairs of batch row and key head.

    Returns:
        By batch row and blocks: for each key head, the indices of its blocks in `received`.
    """
    joined: dict[tuple[int, tuple[Any, ...]], dict[int, torch.Tensor]] = {}
    for row in received[:, 1].unique().tolist():
        indices = (received[:, 1] == row).nonzero().flatten()
        blocks = tuple(map(tuple, received[indices][:, [0, 2]].tolist()))
        b, head = divmod(row, key_heads)
        joined.setdefault((b, blocks), {})[head] = indices
    return joined

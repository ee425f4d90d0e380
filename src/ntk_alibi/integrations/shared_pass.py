"""Forward passes of a patched model on several ranks, which share the tokens of one text.

In an `OwnTokens` pass each rank computes its part of the text, and `attention` with a group lets
blocks of keys travel. In a `SpreadKeys` pass all ranks compute the same new tokens, each attends to
the keys that it holds if they can matter, and the results are merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch

from ntk_alibi import _arrays
from ntk_alibi.biases.base import kernel_bias_of
from ntk_alibi.distributed import spread
from ntk_alibi.distributed.ranks import Attempt, Ranks
from ntk_alibi.distributed.sharding import Layout, columns_of
from ntk_alibi.distributed.spread import KeyWeightBounds
from ntk_alibi.fused.attention import attention as fused_attention
from ntk_alibi.integrations import checks
from ntk_alibi.integrations.caches.sharded import ShardedCache
from ntk_alibi.integrations.pass_bias import bias_of_pass
from ntk_alibi.masks import EVERYTHING, Problem
from ntk_alibi.positions.log_n import KnownFactors

#: Number of tokens of each rank from which a prompt is cut into parts.
LEAST_PART = 64


def is_cut(cache: Any, tokens: int) -> bool:
    """Return whether a pass is the first of a spread cache, and so long that each rank has a part.

    Args:
        cache: the past_key_values of the pass.
        tokens: the number of tokens of the pass.
    """
    return (
        isinstance(cache, ShardedCache)
        and cache.get_seq_length() == 0
        and tokens >= LEAST_PART * cache.ranks.size
    )


@dataclass(frozen=True)
class OwnTokens:
    """A pass in which each rank has a part of the text.

    Attributes:
        ranks: the processes.
        at: this rank's columns of the text, ascending int64.
        plain: whether all tokens of all ranks are real, and those of each rank one run.
    """

    ranks: Ranks
    at: torch.Tensor
    plain: bool

    def attend(
        self,
        forward_pass: Any,
        query: Any,
        key: Any,
        value: Any,
        cache: tuple[Any, Any],
        scale: float,
    ) -> torch.Tensor:
        """Return the output of this rank's queries, (batch, heads, queries, head_dim)."""
        held, layer = cache
        if held is not None:
            held.update(key, value, layer)
        options: dict[str, Any] = {"group": self.ranks.group}
        if not self.plain or forward_pass.streaming is not None:
            positions = forward_pass.positions(forward_pass.mask)[:, self.at]
            options |= {"query_positions": positions, "key_positions": positions}
        if not self.plain:
            options["key_padding_mask"] = forward_pass.mask[:, self.at]
        output = _attention(forward_pass, query, key, value, scale, **options)
        return cast(torch.Tensor, output)


@dataclass(frozen=True)
class SpreadKeys:
    """A pass in which all ranks have the same queries, and each holds some of the keys.

    Attributes:
        ranks: the processes.
        at: the columns of the queries.
        cache: the cache, which knows this rank's columns of the text.
        own: those of the new tokens whose keys this rank keeps.
    """

    ranks: Ranks
    at: slice
    cache: ShardedCache
    own: slice

    def attend(
        self,
        forward_pass: Any,
        query: Any,
        key: Any,
        value: Any,
        cache: tuple[Any, Any],
        scale: float,
    ) -> torch.Tensor:
        """Return the output of the queries, (batch, heads, queries, head_dim), on every rank."""
        layer = cache[1]
        if self.own.start < self.own.stop:
            self.cache.update(key[:, :, self.own], value[:, :, self.own], layer)
        keys, values = self.cache.held(layer)
        flags = self._silent(forward_pass, query, key, keys, layer, scale)

        def over_own_keys() -> tuple[torch.Tensor, torch.Tensor]:
            if keys is None or flags[self.ranks.rank]:
                return _constant_results(query, 0.0, -torch.inf)
            found = _attention(
                forward_pass,
                query,
                keys,
                values,
                scale,
                **forward_pass.memo(_spread_options),
                skip_tolerance=spread.OWN_SHARE,
                return_logsumexp=True,
            )
            return cast(tuple[torch.Tensor, torch.Tensor], found)

        # An error travels as NaN, so that passes without one send nothing more.
        attempt = Attempt(over_own_keys)
        failed = attempt.error is not None
        own = _constant_results(query, torch.nan, torch.nan) if failed else attempt.result
        result = spread.merged(self.ranks, *own, flags)
        if result.isnan().any():
            self.ranks.raise_error_of_any(attempt)
        return result.to(query.dtype)

    def _silent(
        self, forward_pass: Any, query: Any, key: Any, keys: Any, layer: int, scale: float
    ) -> list[bool]:
        """Return for each rank whether its keys of a layer weigh nothing, and it sends nothing."""
        standing, any_rank = forward_pass.memo(_standing)
        if not any_rank:
            return [False] * self.ranks.size
        own = keys is None
        if not own and standing.may_be_silent and not _arrays.needs_torch(query, key, keys, None):
            factors = forward_pass.factors
            own = standing.silent(query, key, factors, scale, self.cache.norms(layer))
        return self.ranks.gather_flags(own)


def _constant_results(
    query: torch.Tensor, output: float, logsumexp: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        torch.full_like(query, output, memory_format=torch.contiguous_format),
        query.new_full(query.shape[:3], logsumexp, dtype=torch.float32),
    )


def own_tokens(
    ranks: Ranks,
    layout: Layout,
    mask: torch.Tensor | None,
    shape: tuple[int, int],
    device: Any,
) -> tuple[OwnTokens, torch.Tensor]:
    """Return the pass of a part of a text on each rank, and the mask of the whole text.

    Args:
        ranks: the processes.
        layout: which tokens each rank holds.
        mask: this rank's attention_mask, (batch, tokens), or None.
        shape: batch and number of this rank's tokens.
        device: the device of the mask.
    """
    batch, tokens = shape

    def describe() -> dict[str, Any]:
        checks.some_tokens(tokens)
        checks.mask_of_part(None if mask is None else tuple(mask.shape), shape)
        return {"batch": batch, "own tokens": tokens, "own padding": mask is not None}

    every = ranks.agree(describe)
    lengths = [x["own tokens"] for x in every]
    total = sum(lengths)
    columns = list(torch.arange(total).split(lengths))
    if layout != "contiguous":
        columns = [columns_of(rank, ranks.size, total, layout) for rank in range(ranks.size)]
        checks.parts_of_layout(lengths, [len(x) for x in columns], layout)
    whole = torch.ones((batch, total), dtype=torch.bool, device=device)
    if any(x["own padding"] for x in every):
        own = torch.ones(shape, dtype=torch.uint8, device=device)
        if mask is not None:
            own = (mask != 0).to(device, torch.uint8)
        whole[:, torch.cat(columns)] = torch.cat(ranks.gather_rows(own, lengths), dim=1).bool()
    plain = layout == "contiguous" and bool(whole.all())
    return OwnTokens(ranks, columns[ranks.rank], plain), whole


def _spread_options(forward_pass: Any) -> dict[str, Any]:
    """Return the positions and the padding of new tokens and of the keys that this rank holds."""
    positions = forward_pass.positions(forward_pass.mask)
    columns = forward_pass.shared.cache.columns
    return {
        "query_positions": positions[:, forward_pass.at],
        "key_positions": positions[:, columns],
        "key_padding_mask": forward_pass.mask[:, columns],
    }


def _standing(forward_pass: Any) -> tuple[KeyWeightBounds, bool]:
    """Return what this rank's keys can weigh, and whether those of any rank may be too light.

    All ranks call this at the same layer.
    """
    shared, options = forward_pass.shared, forward_pass.memo(_spread_options)
    names = "query_positions", "key_positions", "key_padding_mask"
    at, keys, real = (_arrays.to_numpy(options[name]) for name in names)
    new = _arrays.to_numpy(forward_pass.mask[:, forward_pass.at])
    limits = EVERYTHING if forward_pass.streaming is None else forward_pass.streaming.mask
    bias = forward_pass.memo(bias_of_pass)
    problem = Problem((len(new), bias.num_heads, new.shape[1], keys.shape[1]), limits)
    kernel = kernel_bias_of(bias, problem)
    placed = problem._replace(key_padding_mask=real, query_positions=at, key_positions=keys)
    standing = KeyWeightBounds(shared.ranks.size, placed, new, kernel)
    return standing, any(shared.ranks.gather_flags(standing.may_be_silent))


def _attention(
    forward_pass: Any, query: Any, key: Any, value: Any, scale: float, **options: Any
) -> Any:
    """Return `ntk_alibi.attention` with the bias, the factors and the limits of a pass."""
    limits = {} if forward_pass.streaming is None else forward_pass.streaming.limits
    return fused_attention(
        query,
        key,
        value,
        forward_pass.memo(bias_of_pass),
        **limits,
        scale=scale,
        log_n=KnownFactors.of(forward_pass.factors),
        **options,
    )

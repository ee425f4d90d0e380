"""Forward passes of a patched model on several ranks, which share the tokens of one text.

In an `OwnTokens` pass each rank computes its part of the text, and `attention` with a group lets
blocks of keys travel. In a `SpreadKeys` pass all ranks compute the same new tokens, each attends to
the keys that it holds, and the results are merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch

from ntk_alibi.distributed.ranks import Ranks
from ntk_alibi.fused.attention import attention as fused_attention
from ntk_alibi.fused.merge import merge
from ntk_alibi.integrations import checks
from ntk_alibi.integrations.caches.sharded import ShardedCache
from ntk_alibi.integrations.pass_bias import PassBias
from ntk_alibi.positions.log_n import KnownFactors

#: Number of tokens of each rank from which a prompt is cut into parts.
LEAST_PART = 64


@dataclass(frozen=True)
class OwnTokens:
    """A pass in which each rank has a part of the text.

    Attributes:
        ranks: the processes.
        columns: this rank's columns of the text.
        plain: whether all tokens of all ranks are real.
    """

    ranks: Ranks
    columns: slice
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
        options: dict[str, Any] = _limits(forward_pass)
        if not self.plain or forward_pass.streaming is not None:
            positions = forward_pass.positions(forward_pass.mask)[:, self.columns]
            options |= {"query_positions": positions, "key_positions": positions}
        if not self.plain:
            options["key_padding_mask"] = forward_pass.mask[:, self.columns]
        return cast(
            torch.Tensor,
            fused_attention(
                query,
                key,
                value,
                forward_pass.memo(_bias),
                **options,
                scale=scale,
                log_n=_factors(forward_pass),
                group=self.ranks.group,
            ),
        )


@dataclass(frozen=True)
class SpreadKeys:
    """A pass in which all ranks have the same queries, and each holds some of the keys.

    Attributes:
        ranks: the processes.
        cache: the cache, which knows this rank's columns of the text.
        owner: whether this rank keeps the new tokens.
    """

    ranks: Ranks
    cache: ShardedCache
    owner: bool

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
        if self.owner:
            self.cache.update(key, value, layer)
        keys, values = self.cache.held(layer)
        columns = self.cache.columns
        output = torch.zeros_like(query, memory_format=torch.contiguous_format)
        logsumexp = query.new_full(query.shape[:3], -torch.inf, dtype=torch.float32)
        if keys is not None:
            positions = forward_pass.positions(forward_pass.mask)
            past = forward_pass.past
            output, logsumexp = fused_attention(
                query,
                keys,
                values,
                forward_pass.memo(_bias),
                **_limits(forward_pass),
                query_positions=positions[:, past : past + forward_pass.queries],
                key_positions=positions[:, columns],
                key_padding_mask=forward_pass.mask[:, columns],
                scale=scale,
                log_n=_factors(forward_pass),
                return_logsumexp=True,
            )
        packed = torch.cat([output.float(), logsumexp.float()[..., None]], -1)
        parts = self.ranks.gather(packed)
        merged, _ = merge([x[..., :-1] for x in parts], [x[..., -1].contiguous() for x in parts])
        return merged.to(query.dtype)


def own_tokens(
    ranks: Ranks, choices: str, mask: torch.Tensor | None, shape: tuple[int, int], device: Any
) -> tuple[OwnTokens, torch.Tensor]:
    """Return the pass of a part of a text on each rank, and the mask of the whole text.

    Args:
        ranks: the processes.
        choices: the choices of this rank's patch, which must be those of all.
        mask: this rank's attention_mask, (batch, tokens), or None.
        shape: batch and number of this rank's tokens.
        device: the device of the mask.
    """
    batch, tokens = shape

    def describe() -> dict[str, Any]:
        checks.mask_of_part(None if mask is None else tuple(mask.shape), shape)
        own = {"own tokens": tokens, "own padding": mask is not None}
        return {"the patch": choices, "batch": batch, **own}

    every = ranks.agree(describe)
    lengths = [x["own tokens"] for x in every]
    begin = sum(lengths[: ranks.rank])
    whole = torch.ones((batch, sum(lengths)), dtype=torch.bool, device=device)
    if any(x["own padding"] for x in every):
        own = torch.ones(shape, dtype=torch.uint8, device=device)
        if mask is not None:
            own = (mask != 0).to(device, torch.uint8)
        whole = torch.cat(ranks.gather_rows(own, lengths), dim=1).bool()
    columns = slice(begin, begin + tokens)
    return OwnTokens(ranks, columns, bool(whole.all())), whole


def _limits(forward_pass: Any) -> dict[str, Any]:
    if forward_pass.streaming is None:
        return {}
    limits = forward_pass.streaming.mask._asdict()
    return {name: limit for name, limit in limits.items() if name != "sink"}


def _bias(forward_pass: Any) -> PassBias:
    real = forward_pass.real
    slopes = forward_pass.biased(
        forward_pass.slopes(real, forward_pass.queries), forward_pass.factors
    )
    return PassBias(slopes, forward_pass.bend(real, forward_pass.queries))


def _factors(forward_pass: Any) -> Any:
    factors = forward_pass.factors
    return None if factors is None else KnownFactors(factors)

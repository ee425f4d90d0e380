"""Forward passes of a patched model on several ranks, which share the tokens of one text.

In an `OwnTokens` pass each rank computes its part of the text, and `distributed.attention` lets
blocks of keys travel. In a `SpreadKeys` pass all ranks compute the same new tokens, each attends to
the keys that it holds if they can matter, and the results are merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ntk_alibi import _arrays, distributed
from ntk_alibi._torch_state import Way, way_of
from ntk_alibi.biases.base import BiasObject
from ntk_alibi.distributed import spread
from ntk_alibi.distributed.ranks import Ranks, attempt
from ntk_alibi.distributed.spread import KeyWeightBounds
from ntk_alibi.fused.prepared import attend_prepared
from ntk_alibi.integrations.caches.sharded import ShardedCache
from ntk_alibi.integrations.forward_pass import ForwardPass
from ntk_alibi.integrations.tensor_parallel import SomeHeads
from ntk_alibi.masks import EVERYTHING, Problem


@dataclass(frozen=True)
class OwnTokens:
    """A pass in which each rank has a part of the text.

    Attributes:
        ranks: the processes.
        at: this rank's columns of the text, ascending int64.
        plain: whether all tokens of all ranks are real, and the tokens of each rank one run.
        cache: the cache that keeps this rank's keys and values, or None.
    """

    ranks: Ranks
    at: torch.Tensor
    plain: bool
    cache: ShardedCache | None = None

    def attend(
        self, made: ForwardPass, layer: int, query: Any, key: Any, value: Any, scale: float
    ) -> torch.Tensor:
        """Return the output of this rank's queries, (batch, heads, queries, head_dim)."""
        if self.cache is not None:
            self.cache.update(key, value, layer)
        bias: Any = made.bias_of(layer)
        problem, heads = made.problem, made.heads
        log_n: Any = made.settings.log_n
        options: dict[str, Any] = {}
        if not self.plain or problem.mask != EVERYTHING:
            positions = problem.positions()[0]
            options |= {"query_positions": positions, "key_positions": positions}
        if not self.plain:
            options["key_padding_mask"] = made.mask[:, self.at]
        if heads is not None:
            bias, log_n = SomeHeads(bias, heads), log_n and log_n.for_heads(heads)
        output: torch.Tensor = distributed.attention(
            query,
            key,
            value,
            bias,
            **{name: limit for name, limit in problem.mask._asdict().items() if name != "sink"},
            scale=scale,
            log_n=log_n,
            group=self.ranks.group,
            **options,
        )
        return output


@dataclass(frozen=True)
class SpreadKeys:
    """A pass in which all ranks have the same queries, and each holds some of the keys.

    Attributes:
        ranks: the processes.
        at: the columns of the queries.
        cache: the cache, which knows this rank's columns of the text.
        own: the new tokens whose keys this rank keeps.
    """

    ranks: Ranks
    at: slice
    cache: ShardedCache
    own: slice

    def attend(
        self, made: ForwardPass, layer: int, query: Any, key: Any, value: Any, scale: float
    ) -> torch.Tensor:
        """Return the output of the queries, (batch, heads, queries, head_dim), on every rank."""
        if self.own.start < self.own.stop:
            own = key[:, :, self.own], value[:, :, self.own]
            self.cache.update(*own, layer)
        keys, values = self.cache.held(layer)
        bias = made.bias_of(layer)
        flags = self._silent(made, layer, bias, query, key, keys, scale)

        def over_own_keys() -> tuple[torch.Tensor, torch.Tensor]:
            if keys is None or flags[self.ranks.rank]:
                return _constant_results(query, 0.0, -torch.inf)
            way = way_of(query, keys, values, bias=bias)
            like = None if way is Way.CORE else query
            return attend_prepared(
                query,
                keys,
                values,
                made.parts(bias, like)[0].bias,
                made.memo(None, None, _problem_of_own_keys, made),
                scale,
                made.factors(like),
                way=way,
                skip_tolerance=spread.OWN_SHARE,
                log=True,
            )

        # An error travels as NaN, so that passes without one send nothing more.
        results, error = attempt(over_own_keys)
        output, logsumexp = results or _constant_results(query, torch.nan, torch.nan)
        result = spread.merge_over_ranks(self.ranks, output, logsumexp, flags)
        if result.isnan().any():
            self.ranks.raise_any_error(error)
        return result.to(query.dtype)

    def _silent(
        self,
        made: ForwardPass,
        layer: int,
        bias: BiasObject,
        query: Any,
        key: Any,
        keys: Any,
        scale: float,
    ) -> list[bool]:
        """Return for each rank whether its keys of a layer weigh nothing, and it sends nothing."""
        weight_bounds, any_rank = made.memo(bias, None, _bound_weights, made, bias)
        if not any_rank:
            return [False] * self.ranks.size
        own = keys is None
        in_core = way_of(query, key, keys) is Way.CORE
        if not own and weight_bounds.may_be_negligible and in_core:
            factors = made.factors(query)
            own = weight_bounds.is_negligible(query, key, factors, scale, self.cache.norms(layer))
        return self.ranks.gather_flags(own)


def _constant_results(
    query: torch.Tensor, output: float, logsumexp: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        torch.full_like(query, output, memory_format=torch.contiguous_format),
        query.new_full(query.shape[:3], logsumexp, dtype=torch.float32),
    )


def _problem_of_own_keys(made: ForwardPass) -> Problem:
    """Return the problem of new tokens and the keys that this rank holds."""
    problem, columns, heads = made.problem, made.shared.cache.columns, made.heads
    at, keys = problem.positions()
    count = problem.shape[1] if heads is None else heads.stop - heads.start
    return Problem.checked(
        (problem.shape[0], count, problem.shape[2], len(columns)),
        problem.mask,
        made.mask[:, columns],
        at,
        keys[:, np.asarray(columns)],
        like=made.mask,
    )


def _bound_weights(made: ForwardPass, bias: BiasObject) -> tuple[KeyWeightBounds, bool]:
    """Return what this rank's keys can weigh, and whether any rank's keys may be too light.

    All ranks call this at the same layer.
    """
    shared = made.shared
    own = made.memo(None, None, _problem_of_own_keys, made)
    new = _arrays.to_numpy(made.mask[:, shared.at])
    kernel = made.parts(bias, None)[0].bias
    weight_bounds = KeyWeightBounds(shared.ranks.size, own, new, kernel)
    return weight_bounds, any(shared.ranks.gather_flags(weight_bounds.may_be_negligible))

"""The three forms of attention of a patched layer: fused, sdpa and eager."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import nn
from torch.nn import functional as F

from ntk_alibi import _arrays, _checks
from ntk_alibi.fused.attention import attention as fused_attention
from ntk_alibi.fused.key_norms import KeyNorms
from ntk_alibi.fused.merge import merge
from ntk_alibi.integrations import checks
from ntk_alibi.integrations.caches.growing import GrowingCache
from ntk_alibi.integrations.forward_pass import ForwardPass, require_pass, untraced
from ntk_alibi.integrations.pass_bias import PassBias, bias_of_pass
from ntk_alibi.positions.log_n import KnownFactors
from ntk_alibi.scaling import Bend
from ntk_alibi.torch.sdpa import causal_linear_attention
from ntk_alibi.torch.streaming_mask import StreamingMask

Index: TypeAlias = slice | torch.Tensor


@dataclass(frozen=True)
class PassAttention:
    """The attention of one layer in a forward pass, a `LayerAttention`."""

    forward_pass: ForwardPass

    @property
    def stock(self) -> ForwardPass | None:
        """The pass if it is eager, without factors of scores, which transformers does not have."""
        eager = self.forward_pass.eager and self.forward_pass.factors is None
        return self.forward_pass if eager else None

    @untraced
    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: tuple[Any, int | None],
        scale: float,
        dropout: float = 0.0,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return attention output, and weights in the eager form.

        Weights have a column for each place of a static cache. The output of padded queries is
        undefined. The compiled core has no dropout: with dropout the fused form becomes sdpa or
        eager.
        """
        forward_pass = self.forward_pass
        _checks.plain("query", query)
        if forward_pass.shared is not None:
            checks.no_dropout_in_group(dropout)
            return forward_pass.shared.attend(forward_pass, query, key, value, cache, scale), None
        form = forward_pass.settings.attention
        if form == "fused" and dropout:
            rounded = forward_pass.settings.compat == "transformers"
            form = "eager" if forward_pass.rule.counts_holes or rounded else "sdpa"
        held, layer = cache
        if held is not None:
            in_core = form == "fused" and not _arrays.needs_torch(query, key, value, None)
            append: Any = held.append if in_core and isinstance(held, GrowingCache) else held.update
            key, value = append(key, value, layer)
        length, capacity = forward_pass.past + forward_pass.queries, key.shape[2]
        key, value = key[:, :, :length], value[:, :, :length]
        if form == "eager":
            output, weights = _eager(forward_pass, query, key, value, scale, dropout)
            return output, weights if capacity == length else F.pad(weights, (0, capacity - length))
        if form == "sdpa":
            return _sdpa(forward_pass, query, key, value, scale, dropout), None
        return _fused(forward_pass, query, key, value, cache, scale), None


def of_layer(
    layer: nn.Module, passed: Any, heads: int, hidden_states: torch.Tensor, output: nn.Module
) -> PassAttention:
    """Return the attention of a layer, an `AttentionOf`; see `require_pass`."""
    return PassAttention(require_pass(passed, layer, heads, hidden_states, output))


@dataclass(frozen=True)
class KeyRange:
    """Some columns of keys, and the keywords of `ntk_alibi.attention` for them.

    Attributes:
        keys: the columns.
        options: the keywords.
        whole: whether the range is all keys, at default positions and without a padding mask.
    """

    keys: slice
    options: dict[str, Any]
    whole: bool = False

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """Return the range of keys or values (batch, heads, keys, head_dim)."""
        return x if self.keys == slice(None) else x[:, :, self.keys]


def _fused(
    forward_pass: ForwardPass,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cache: tuple[Any, int | None],
    scale: float,
) -> torch.Tensor:
    """Attend to the ranges of keys, and merge the results.

    Distances jump between window and sinks, by one number for each query. A call for the sinks with
    shifted query positions expresses the jump, so no bias of all pairs is needed.
    """
    bias, ranges = forward_pass.memo(_bias_and_ranges, query.dtype)
    keeps_norms = forward_pass.settings.compat == "exact"
    keeps_norms = keeps_norms and not _arrays.needs_torch(query, key, value, bias)
    results = [
        fused_attention(
            query,
            part.of(key),
            part.of(value),
            bias,
            **part.options,
            scale=scale,
            log_n=KnownFactors.of(forward_pass.factors),
            key_norms=_cached_norms(*cache) if part.whole and keeps_norms else None,
            return_logsumexp=len(ranges) > 1,
        )
        for part in ranges
    ]
    output = results[0] if len(ranges) == 1 else merge(*zip(*results, strict=True))[0]
    return cast(torch.Tensor, output)


def _bias_and_ranges(
    forward_pass: ForwardPass, dtype: torch.dtype
) -> tuple[PassBias | torch.Tensor, list[KeyRange]]:
    real = forward_pass.real
    if forward_pass.settings.compat == "transformers":
        return forward_pass.rounded_bias(real, dtype), [_all_keys(forward_pass, real)]
    bias = bias_of_pass(forward_pass)
    if forward_pass.streaming is None:
        return bias, [_all_keys(forward_pass, real)]
    return bias, _window_and_sinks(forward_pass, forward_pass.streaming, real)


def _all_keys(forward_pass: ForwardPass, real: torch.Tensor) -> KeyRange:
    if forward_pass.all_real(real):
        return KeyRange(slice(None), {}, whole=True)
    keys = forward_pass.positions(real)
    where = {"query_positions": keys[:, forward_pass.past :], "key_positions": keys}
    return KeyRange(slice(None), where | {"key_padding_mask": real})


def _window_and_sinks(
    forward_pass: ForwardPass, streaming: StreamingMask, real: torch.Tensor
) -> list[KeyRange]:
    keys, sink = forward_pass.positions(real), streaming.mask.sink
    queries = keys[:, forward_pass.past :]
    plain = forward_pass.skipped is None and forward_pass.all_real(real)
    limits = streaming.limits
    first_query = torch.tensor(forward_pass.past)  # its position where all keys are real
    if plain and (sink == 0 or bool(streaming.start(first_query) >= sink)):
        window = KeyRange(slice(None), limits, whole=True)
    elif plain:
        beyond = slice(sink, None)
        where = {"query_positions": queries, "key_positions": keys[:, beyond]}
        window = KeyRange(beyond, limits | where)
    else:
        where = {"query_positions": queries, "key_positions": keys}
        window = KeyRange(slice(None), limits | where | {"key_padding_mask": real & (keys >= sink)})
    if sink == 0:
        return [window]
    where = {"query_positions": queries - streaming.evicted(queries)}
    if plain:
        first = slice(0, sink)
        return [window, KeyRange(first, where | {"key_positions": keys[:, first]})]
    where |= {"key_positions": keys, "key_padding_mask": real & (keys < sink)}
    return [window, KeyRange(slice(None), where)]


def _cached_norms(cache: Any, layer: int | None) -> KeyNorms | None:
    """Return the key norms that a layer of a GrowingCache keeps, else None."""
    return cache.norms(layer) if isinstance(cache, GrowingCache) and layer is not None else None


def _eager(
    forward_pass: ForwardPass,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    dropout: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    bias = forward_pass.memo(_eager_bias, query.dtype).to(query.device)
    factors = forward_pass.factors
    factors = None if factors is None else factors[..., None].to(query.device)
    return attend_densely(query, key, value, bias, factors, scale, dropout)


def attend_densely(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor,
    factors: torch.Tensor | None,
    scale: float,
    dropout: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention output and all weights, in plain torch.

    Args:
        query: (batch, heads, queries, head_dim).
        key: (batch, 1 or heads, keys, head_dim).
        value: (batch, 1 or heads, keys, head_dim).
        bias: (1 or batch, 1 or heads, 1 or queries, keys), float32, very low for hidden keys.
        factors: factors of the products, (1 or batch, 1 or heads, queries, 1), or None.
        scale: another factor of the products.
        dropout: the probability of dropping a weight.
    """
    key, value = (x.expand(-1, query.shape[1], -1, -1) for x in (key, value))
    precise = torch.promote_types(query.dtype, bias.dtype)
    scores = (query @ key.mT).to(precise) * scale
    scores = (scores if factors is None else scores * factors) + bias
    weights = torch.softmax(scores, dim=-1).to(query.dtype)
    weights = F.dropout(weights, dropout) if dropout else weights
    return weights @ value, weights


def _eager_bias(forward_pass: ForwardPass, dtype: torch.dtype) -> torch.Tensor:
    """Return the bias (batch, heads, queries, keys), its dtype's least number for hidden keys."""
    real = forward_pass.real
    if forward_pass.settings.compat == "transformers":
        bias = forward_pass.rounded_bias(real, dtype)
    else:
        bias = forward_pass.relative_bias(real)
    return bias.masked_fill(forward_pass.hidden(real), torch.finfo(bias.dtype).min)


@dataclass(frozen=True)
class UnpaddedRows:
    """Batch rows whose real tokens stand in the same columns: a problem without padding.

    If positions count real tokens, they are contiguous without the padded columns.

    Attributes:
        batch: the rows.
        queries: columns of the queries.
        keys: columns of the keys.
        slopes: float32 (1 or batch, heads, 1 or queries).
        positions: integers (keys,).
        bend: a knee, or None.
        factors: float32 (1 or batch, 1 or heads, queries), or None.
    """

    batch: slice
    queries: Index
    keys: Index
    slopes: torch.Tensor
    positions: torch.Tensor
    bend: Bend | None
    factors: torch.Tensor | None


def _sdpa(
    forward_pass: ForwardPass,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    dropout: float,
) -> torch.Tensor:
    rows = forward_pass.memo(_unpadded_rows)
    key, value = (x.expand(-1, query.shape[1], -1, -1) for x in (key, value))

    def part(r: UnpaddedRows) -> torch.Tensor:
        return causal_linear_attention(
            query[r.batch, :, r.queries],
            key[r.batch, :, r.keys],
            value[r.batch, :, r.keys],
            r.slopes.to(query.device),
            scale=scale,
            dropout=dropout,
            streaming=forward_pass.streaming,
            positions=r.positions.to(query.device),
            bend=r.bend,
            factors=None if r.factors is None else r.factors.to(query.device),
        )

    if len(rows) == 1 and rows[0].queries == slice(0, forward_pass.queries):
        return part(rows[0])
    output = torch.zeros_like(query, memory_format=torch.contiguous_format)
    for r in rows:
        output[r.batch, :, r.queries] = part(r)
    return output


def _unpadded_rows(forward_pass: ForwardPass) -> list[UnpaddedRows]:
    """Split the batch into problems without padding."""
    real, past, queries = forward_pass.real, forward_pass.past, forward_pass.queries
    unpadded = forward_pass.unpadded and forward_pass.skipped is None
    real = torch.ones(real.shape, dtype=torch.bool) if unpadded else real.cpu()
    positions, skipped = forward_pass.positions(real), forward_pass.skipped
    factors = forward_pass.factors
    factors = None if factors is None else factors.expand(len(real), -1, -1)
    alike = len(positions) == 1 or bool((positions == positions[:1]).all())
    if bool(real.all()) and alike:
        slopes = forward_pass.biased(forward_pass.slopes(real, queries), factors)
        columns = slice(0, queries), slice(0, real.shape[1])
        bend = forward_pass.bend(real, queries)
        return [UnpaddedRows(slice(0, len(real)), *columns, slopes, positions[0], bend, factors)]
    rows = []
    for b, row in enumerate(real):
        count = int(row[past:].sum())
        if count:
            of_row = row[row][None], count, None if skipped is None else skipped[b : b + 1]
            places = _columns(row[past:]), _columns(row)
            own = None if factors is None else factors[b : b + 1, :, places[0]]
            slopes = forward_pass.biased(forward_pass.slopes(*of_row), own)
            bend = forward_pass.bend(*of_row)
            rows.append(
                UnpaddedRows(slice(b, b + 1), *places, slopes, positions[b][row], bend, own)
            )
    return rows


def _columns(real: torch.Tensor) -> Index:
    """Return the columns of real tokens: a slice, which copies nothing, if contiguous."""
    columns = real.nonzero().flatten()
    if len(columns) == 0:
        return slice(0, 0)
    first, last = int(columns[0]), int(columns[-1])
    return slice(first, last + 1) if last - first + 1 == len(columns) else columns

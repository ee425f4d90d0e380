"""One forward pass of a patched model: its padding, positions and slopes, and attention on them.

A model's patch has three things to say here: the rule its slopes follow (`Rule`), when a pass
begins (`begin_pass`, before the model's forward) and what each layer attends with (`AlibiPass`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from ntk_alibi import _arrays
from ntk_alibi.biases.alibi import ALiBi
from ntk_alibi.biases.slopes import scaling_per
from ntk_alibi.fused.attention import attention as fused_attention
from ntk_alibi.fused.merge import merge
from ntk_alibi.integrations.family import transformers_version
from ntk_alibi.integrations.forms import KeyRange, UnpaddedRows, columns_of, kept_norms
from ntk_alibi.integrations.handed import PassedThrough
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.integrations.slope_rule import SlopeRule
from ntk_alibi.scaling import Scaling
from ntk_alibi.torch.sdpa import causal_linear_attention
from ntk_alibi.torch.streaming_mask import StreamingMask

Made = TypeVar("Made")
Function = TypeVar("Function", bound=Callable[..., Any])


def untraced(function: Function) -> Function:
    """Out of torch.compile's sight: what the function does depends on numbers of the mask."""
    return cast(Function, torch.compiler.disable(function))


class ForwardPass(PassedThrough):
    """What one forward pass knows about its bias; travels to the layers as their attention_mask.

    Attributes:
        mask: (batch, keys or more), True for real keys; static caches have keys beyond the last
            query.
        past: keys that stand before the first query.
        queries: how many there are.
        sight: what the queries see of them, or None for everything.
        skipped: (batch,), real tokens that are neither among the keys nor queries, or None: they
            stood between the sinks and the window of a `WindowCache`.
    """

    mask: torch.Tensor
    misuse = (
        "the patch must stay until the backward pass of a gradient-checkpointed forward is done, "
        "which runs that forward again; it was undone before"
    )

    def __init__(
        self,
        rule: SlopeRule,
        settings: Settings,
        mask: torch.Tensor,
        past: int,
        queries: int,
        sight: StreamingMask | None = None,
        skipped: torch.Tensor | None = None,
    ) -> None:
        super().__init__(mask)
        self.past = past
        self.queries = queries
        self.sight = sight
        self.skipped = skipped
        self._rule = rule
        self._settings = settings
        self._kept: dict[Any, Any] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        """As of a mask of four dimensions, which transformers leaves as it is."""
        return (len(self.mask), 1, self.queries, self.mask.shape[1])

    @untraced
    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: tuple[Any, int | None],
        scale: float,
        dropout: float = 0.0,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attention output (batch, heads, queries, head_dim), and the weights in the eager form.

        Keys and values go through the cache, or None, at the layer of that number. What padded
        queries get is not defined. Dropout is not in the compiled core: calls with it take the next
        form that has it.
        """
        held, layer = cache
        if held is not None:
            key, value = held.update(key, value, layer)
        length = self.past + self.queries
        key, value = key[:, :, :length], value[:, :, :length]
        attention = self._settings.attention
        if attention == "fused" and dropout:
            rounded = self._settings.compat == "transformers"
            attention = "eager" if self._rule.counts_holes or rounded else "sdpa"
        if attention == "eager":
            return self._eager(query, key, value, scale, dropout)
        if attention == "sdpa":
            return self._sdpa(query, key, value, scale, dropout), None
        return self._fused(query, key, value, cache, scale), None

    @property
    def scaling(self) -> Scaling | None:
        """The patch's scaling."""
        return self._settings.scaling

    @property
    def eager(self) -> bool:
        """Whether the layers shall do as transformers does, with all weights."""
        return self._settings.attention == "eager"

    def _fused(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: tuple[Any, int | None],
        scale: float,
    ) -> torch.Tensor:
        """The parts of the keys one after the other: distances jump between window and sinks.

        That sinks stand nearer is one position for each query, so that no bias of pairs is needed.
        """
        bias, parts = self.kept(ForwardPass._fused_parts, query.dtype)
        linear = isinstance(bias, ALiBi) and not _arrays.needs_torch(query, key, value, bias)
        results = [
            fused_attention(
                query,
                part.of(key),
                part.of(value),
                bias,
                **part.options,
                scale=scale,
                key_norms=kept_norms(*cache) if part.whole and linear else None,
                return_logsumexp=len(parts) > 1,
            )
            for part in parts
        ]
        output = results[0] if len(parts) == 1 else merge(*zip(*results, strict=True))[0]
        return cast(torch.Tensor, output)

    def _fused_parts(self, dtype: torch.dtype) -> tuple[ALiBi | torch.Tensor, list[KeyRange]]:
        real = self._real()
        if self._settings.compat == "transformers":
            return self._rounded_bias(real, dtype), [self._part(real)]
        bias = ALiBi(self._rule.heads, slopes=self._slopes(real, self.queries))
        return bias, [self._part(real)] if self.sight is None else self._parts_in_sight(real)

    def _part(self, real: torch.Tensor) -> KeyRange:
        """All keys, of which queries see those behind them."""
        if bool(real.all()):
            return KeyRange(slice(None), {}, whole=True)
        keys = self._positions(real)
        where = {"query_positions": keys[:, self.past :], "key_positions": keys}
        return KeyRange(slice(None), where | {"key_padding_mask": real})

    def _parts_in_sight(self, real: torch.Tensor) -> list[KeyRange]:
        """The keys of the window, and the sinks."""
        sight = cast(StreamingMask, self.sight)
        keys = self._positions(real)
        queries = keys[:, self.past :]
        plain = self.skipped is None and bool(real.all())
        limits: dict[str, Any] = {"window": sight.window, "causal_block": sight.causal_block}
        if plain and (sight.sink == 0 or bool(sight.start(queries[0, 0]) >= sight.sink)):
            window = KeyRange(slice(None), limits, whole=True)
        elif plain:
            beyond = slice(sight.sink, None)
            where = {"query_positions": queries, "key_positions": keys[:, beyond]}
            window = KeyRange(beyond, limits | where)
        else:
            where = {"query_positions": queries, "key_positions": keys}
            mask = real & (keys >= sight.sink)
            window = KeyRange(slice(None), limits | where | {"key_padding_mask": mask})
        if sight.sink == 0:
            return [window]
        where = {"query_positions": queries - sight.missing(queries)}
        if plain:
            first = slice(0, sight.sink)
            return [window, KeyRange(first, where | {"key_positions": keys[:, first]})]
        mask = real & (keys < sight.sink)
        where |= {"key_positions": keys, "key_padding_mask": mask}
        return [window, KeyRange(slice(None), where)]

    def _eager(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        dropout: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        bias = self.kept(ForwardPass._eager_bias, query.dtype).to(query.device)
        key, value = (x.expand(-1, query.shape[1], -1, -1) for x in (key, value))
        precise = torch.promote_types(query.dtype, bias.dtype)
        scores = (query @ key.mT).to(precise) * scale + bias
        weights = torch.softmax(scores, dim=-1).to(query.dtype)
        weights = F.dropout(weights, dropout)
        return weights @ value, weights

    def _eager_bias(self, dtype: torch.dtype) -> torch.Tensor:
        """Float32 (batch, heads, queries, keys), with its least number for hidden keys."""
        real = self._real()
        hidden = self.hidden(real)
        if self._settings.compat == "transformers":
            bias = self._rounded_bias(real, dtype)
        else:
            bias = self.relative_bias(real)
        return bias.masked_fill(hidden, torch.finfo(bias.dtype).min)

    def relative_bias(self, real: torch.Tensor) -> torch.Tensor:
        """-m_h (i - j) to the keys of a mask, (batch, heads, queries, keys), float32."""
        slopes = self._slopes(self._real(), self.queries).to(real.device)
        return -slopes[..., None] * self._distances(real)[0][:, None]

    def hidden(self, real: torch.Tensor) -> torch.Tensor:
        """Which keys of a mask each query does not see, (batch, 1, queries, keys)."""
        seen = visible(real, self.past, self.queries)
        return ~seen if self.sight is None else ~(seen & self._distances(real)[1][:, None])

    def _distances(self, real: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of queries to the keys of a mask, and whether they see them."""
        keys = self._positions(real)
        queries = keys[:, self.past : self.past + self.queries]
        return (self.sight or StreamingMask()).distances(queries, keys)

    def _sdpa(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        dropout: float,
    ) -> torch.Tensor:
        rows = self.kept(ForwardPass._split)
        key, value = (x.expand(-1, query.shape[1], -1, -1) for x in (key, value))

        def part(r: UnpaddedRows) -> torch.Tensor:
            return causal_linear_attention(
                query[r.batch, :, r.queries],
                key[r.batch, :, r.keys],
                value[r.batch, :, r.keys],
                r.slopes.to(query.device),
                scale=scale,
                dropout=dropout,
                sight=self.sight,
                positions=r.positions.to(query.device),
            )

        if len(rows) == 1 and rows[0].queries == slice(0, self.queries):
            return part(rows[0])
        output = torch.zeros_like(query, memory_format=torch.contiguous_format)
        for r in rows:
            output[r.batch, :, r.queries] = part(r)
        return output

    def _split(self) -> list[UnpaddedRows]:
        """The batch as problems without padding."""
        real = self._real().cpu()
        positions = self._positions(real)
        alike = len(positions) == 1 or bool((positions == positions[:1]).all())
        if bool(real.all()) and alike:
            everything = slice(0, real.shape[1])
            slopes = self._slopes(real, self.queries)
            whole = slice(0, len(real)), slice(0, self.queries), everything
            return [UnpaddedRows(*whole, slopes, positions[0])]
        rows = []
        for b, row in enumerate(real):
            count = int(row[self.past :].sum())
            if count:
                skipped = None if self.skipped is None else self.skipped[b : b + 1]
                slopes = self._slopes(row[row][None], count, skipped)
                columns = columns_of(row[self.past :]), columns_of(row)
                rows.append(UnpaddedRows(slice(b, b + 1), *columns, slopes, positions[b][row]))
        return rows

    def _real(self) -> torch.Tensor:
        """The mask up to the last query."""
        return self.mask[:, : self.past + self.queries]

    def _slopes(
        self, real: torch.Tensor, queries: int, skipped: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Of the last queries of (batch, keys), (1 or batch, heads, 1 or queries), float32."""
        return self._rule.slopes(self.scaling, self._lengths(real, queries, skipped))

    def _lengths(
        self, real: torch.Tensor, queries: int, skipped: torch.Tensor | None = None
    ) -> NDArray[np.int64] | None:
        """Real tokens as the scaling counts them, (batch,) or (batch, queries)."""
        per = scaling_per(self.scaling)
        if per is None:
            return None
        seen = real.cumsum(dim=1)[:, real.shape[1] - queries :].clamp(min=1)
        seen = seen if per == "query" else real.sum(dim=1)[:, None]
        skipped = self.skipped if skipped is None else skipped
        seen = seen if skipped is None else seen + skipped.to(seen.device)[:, None]
        lengths: NDArray[np.int64] = (seen if per == "query" else seen[:, 0]).cpu().numpy()
        return lengths

    def _rounded_bias(self, real: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """See `Rule.rounded_bias`."""
        lengths = self._lengths(real, self.queries)
        return self._rule.rounded_bias(self.scaling, lengths, self._positions(real), dtype)

    def _positions(self, real: torch.Tensor) -> torch.Tensor:
        """Of all keys, (1 or batch, keys), 0 for the first real one and what stands before."""
        columns = torch.arange(real.shape[1], device=real.device)
        if self._rule.counts_holes:
            positions = columns - real.int().argmax(dim=1, keepdim=True)
        else:
            positions = real.cumsum(dim=1) - 1
        if self.sight is not None and self.skipped is not None:
            skipped = self.skipped.to(real.device)[:, None]
            positions = positions + torch.where(columns < self.sight.sink, 0, skipped)
        return positions.clamp(min=0)

    @untraced
    def kept(self, make: Callable[..., Made], *arguments: Any) -> Made:
        """What the first layer of the pass makes of it and hashable arguments, for all."""
        key = (make, arguments)
        if key not in self._kept:
            self._kept[key] = make(self, *arguments)
        return cast(Made, self._kept[key])


def visible(real: torch.Tensor, past: int, queries: int) -> torch.Tensor:
    """Which keys each query sees, (batch, 1, queries, keys)."""
    columns = torch.arange(real.shape[1], device=real.device)
    causal = columns <= columns[past : past + queries, None]
    return real[:, None, None, :] & causal


def require_pass(handed: Any, layer: nn.Module) -> ForwardPass:
    """What a layer was handed in the place of the `AlibiPass`, if it is one."""
    if not isinstance(handed, ForwardPass):
        raise RuntimeError(
            f"transformers built the bias of {type(layer).__name__} without asking the patched "
            f"model: the patch would have no effect with transformers {transformers_version()}"
        )
    return handed

"""One forward pass of a patched model: its padding, positions and slopes, and attention on them.

A model's patch has three things to say here: the rule its slopes follow (`Rule`), when a pass
begins (`begin_pass`, before the model's forward) and what each layer attends with (`AlibiPass`).
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeAlias, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask

from ntk_alibi import _arrays, _validation
from ntk_alibi.bias import ALiBi
from ntk_alibi.fused_attention import attention as fused_attention
from ntk_alibi.integrations.growing_cache import GrowingLayer
from ntk_alibi.integrations.patching import Settings, current, transformers_version
from ntk_alibi.integrations.window_cache import WindowCache
from ntk_alibi.plain_attention import KeyNorms, merge
from ntk_alibi.scaling import Floats, Scaling
from ntk_alibi.slopes import scaled_slopes, scaling_per
from ntk_alibi.torch.sdpa import causal_linear_attention
from ntk_alibi.torch.sight import Sight

Index: TypeAlias = slice | torch.Tensor

#: Arguments of a model's forward that `begin_pass` reads.
INPUTS = ("input_ids", "inputs_embeds", "past_key_values", "attention_mask")
Made = TypeVar("Made")
Function = TypeVar("Function", bound=Callable[..., Any])


def untraced(function: Function) -> Function:
    """Out of torch.compile's sight: what the function does depends on numbers of the mask."""
    return cast(Function, torch.compiler.disable(function))


@dataclass(frozen=True)
class Rule:
    """How a model family forms its bias.

    Attributes:
        heads: of queries.
        exponent_factor: of the standard exponents, before any scaling.
        slope_divisor: of the slopes, after it.
        counts_holes: whether distances count padding between real tokens.
    """

    heads: int
    exponent_factor: float = 1.0
    slope_divisor: float = 1.0
    counts_holes: bool = False

    def slopes(self, scaling: Scaling | None, lengths: NDArray[np.int64] | None) -> torch.Tensor:
        """Float32 (1 or batch, heads, 1 or queries); lengths as the scaling's `per` asks."""
        if self.exponent_factor != 1.0:
            scaling = _Steeper(scaling, self.exponent_factor)
        slopes = torch.from_numpy(scaled_slopes(self.heads, scaling, lengths)) / self.slope_divisor
        if slopes.ndim == 1:
            return slopes[None, :, None]
        return slopes[:, :, None] if slopes.ndim == 2 else slopes

    def rounded_bias(
        self,
        scaling: Scaling | None,
        lengths: NDArray[np.int64] | None,
        positions: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Of keys at positions (1 or batch, keys), with transformers' rounding in a model's dtype.

        Float32 (1 or batch, heads, 1, keys): slopes, positions and their products in bfloat16.
        """
        slopes = replace(self, slope_divisor=1.0).slopes(scaling, lengths).to(positions.device)
        product = slopes.bfloat16() * positions[:, None, :].bfloat16()
        return (product.to(dtype) / self.slope_divisor).float()[:, :, None]


@dataclass(frozen=True)
class _Steeper:
    """A scaling, or none, of exponents that are a factor of the standard ones."""

    scaling: Scaling | None
    factor: float

    def scale_exponents(
        self, exponents: Floats, lengths: NDArray[np.int64] | None = None
    ) -> Floats:
        exponents = exponents * self.factor
        if self.scaling is None:
            return exponents
        return self.scaling.scale_exponents(exponents, lengths)


@dataclass(frozen=True)
class Rows:
    """Batch rows whose real tokens stand in the same columns: a problem without padding.

    Where positions count real tokens, leaving out the padded columns makes them contiguous.
    """

    batch: slice
    queries: Index
    keys: Index
    slopes: torch.Tensor  # float32 (1 or batch, heads, 1 or queries)
    positions: torch.Tensor  # of the keys


@dataclass(frozen=True)
class Part:
    """Some columns of keys, and how `ntk_alibi.attention` is to see them."""

    keys: slice
    options: dict[str, Any]
    whole: bool = False  # all keys at their own columns, none hidden but by the options

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """Its keys or values, of (batch, heads, keys, head_dim)."""
        return x if self.keys == slice(None) else x[:, :, self.keys]


class Handed(BlockMask):
    """What goes through transformers in place of a mask of all queries and keys.

    A `BlockMask` by name only: transformers hands those on as they are.
    """

    misuse = ""

    def __init__(self, mask: torch.Tensor | None) -> None:
        self.mask = mask

    def to(self, *_: Any, **__: Any) -> Handed:
        """Itself; what a layer needs is moved to the layer's device."""
        return self

    def contiguous(self) -> Handed:
        """Itself."""
        return self

    @classmethod
    def baddbmm(cls, *_: Any, **__: Any) -> NoReturn:
        """What transformers' BLOOM would ask a tensor for."""
        raise RuntimeError(cls.misuse)

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any, **__: Any) -> NoReturn:
        """What transformers' other models would do with a tensor."""
        raise RuntimeError(cls.misuse)


class Padding(Handed):
    """A padding mask (batch, keys), or None, on its way to a model's forward through generate()."""

    misuse = (
        "attn_implementation='ntk_alibi' must be given when a BLOOM, MPT or Falcon model is made, "
        "to from_pretrained or from_config; this model was made without it, or is another"
    )
    ndim = 2  # not the four of what Falcon folds its bias into


class AlibiPass(Handed):
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
        rule: Rule,
        settings: Settings,
        mask: torch.Tensor,
        past: int,
        queries: int,
        sight: Sight | None = None,
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
        bias, parts = self.kept(AlibiPass._fused_parts, query.dtype)
        linear = isinstance(bias, ALiBi) and not _arrays.needs_torch(query, key, value, bias)
        results = [
            fused_attention(
                query,
                part.of(key),
                part.of(value),
                bias,
                **part.options,
                scale=scale,
                key_norms=_kept_norms(*cache) if part.whole and linear else None,
                return_logsumexp=len(parts) > 1,
            )
            for part in parts
        ]
        output = results[0] if len(parts) == 1 else merge(*zip(*results, strict=True))[0]
        return cast(torch.Tensor, output)

    def _fused_parts(self, dtype: torch.dtype) -> tuple[ALiBi | torch.Tensor, list[Part]]:
        real = self._real()
        if self._settings.compat == "transformers":
            return self._rounded_bias(real, dtype), [self._part(real)]
        bias = ALiBi(self._rule.heads, slopes=self._slopes(real, self.queries))
        return bias, [self._part(real)] if self.sight is None else self._parts_in_sight(real)

    def _part(self, real: torch.Tensor) -> Part:
        """All keys, of which queries see those behind them."""
        if bool(real.all()):
            return Part(slice(None), {}, whole=True)
        keys = self._positions(real)
        where = {"query_positions": keys[:, self.past :], "key_positions": keys}
        return Part(slice(None), where | {"key_padding_mask": real})

    def _parts_in_sight(self, real: torch.Tensor) -> list[Part]:
        """The keys of the window, and the sinks."""
        sight = cast(Sight, self.sight)
        keys = self._positions(real)
        queries = keys[:, self.past :]
        plain = self.skipped is None and bool(real.all())
        limits: dict[str, Any] = {"window": sight.window, "causal_block": sight.causal_block}
        if plain and (sight.sink == 0 or bool(sight.start(queries[0, 0]) >= sight.sink)):
            window = Part(slice(None), limits, whole=True)
        elif plain:
            beyond = slice(sight.sink, None)
            where = {"query_positions": queries, "key_positions": keys[:, beyond]}
            window = Part(beyond, limits | where)
        else:
            where = {"query_positions": queries, "key_positions": keys}
            mask = real & (keys >= sight.sink)
            window = Part(slice(None), limits | where | {"key_padding_mask": mask})
        if sight.sink == 0:
            return [window]
        where = {"query_positions": queries - sight.missing(queries)}
        if plain:
            first = slice(0, sight.sink)
            return [window, Part(first, where | {"key_positions": keys[:, first]})]
        mask = real & (keys < sight.sink)
        where |= {"key_positions": keys, "key_padding_mask": mask}
        return [window, Part(slice(None), where)]

    def _eager(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        dropout: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        bias = self.kept(AlibiPass._eager_bias, query.dtype).to(query.device)
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
        return (self.sight or Sight()).distances(queries, keys)

    def _sdpa(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        dropout: float,
    ) -> torch.Tensor:
        rows = self.kept(AlibiPass._split)
        key, value = (x.expand(-1, query.shape[1], -1, -1) for x in (key, value))

        def part(r: Rows) -> torch.Tensor:
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

    def _split(self) -> list[Rows]:
        """The batch as problems without padding."""
        real = self._real().cpu()
        positions = self._positions(real)
        alike = len(positions) == 1 or bool((positions == positions[:1]).all())
        if bool(real.all()) and alike:
            everything = slice(0, real.shape[1])
            slopes = self._slopes(real, self.queries)
            whole = slice(0, len(real)), slice(0, self.queries), everything
            return [Rows(*whole, slopes, positions[0])]
        rows = []
        for b, row in enumerate(real):
            count = int(row[self.past :].sum())
            if count:
                skipped = None if self.skipped is None else self.skipped[b : b + 1]
                slopes = self._slopes(row[row][None], count, skipped)
                columns = _columns(row[self.past :]), _columns(row)
                rows.append(Rows(slice(b, b + 1), *columns, slopes, positions[b][row]))
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


def _kept_norms(cache: Any, layer: int | None) -> KeyNorms | None:
    """Of a `GrowingCache`."""
    held = [] if layer is None else getattr(cache, "layers", [])[layer : layer + 1]
    return held[0].norms() if held and isinstance(held[0], GrowingLayer) else None


def visible(real: torch.Tensor, past: int, queries: int) -> torch.Tensor:
    """Which keys each query sees, (batch, 1, queries, keys)."""
    columns = torch.arange(real.shape[1], device=real.device)
    causal = columns <= columns[past : past + queries, None]
    return real[:, None, None, :] & causal


def _columns(real: torch.Tensor) -> Index:
    """The columns of real tokens, as a slice where they are contiguous, which copies nothing."""
    columns = real.nonzero().flatten()
    if len(columns) == 0:
        return slice(0, 0)
    first, last = int(columns[0]), int(columns[-1])
    return slice(first, last + 1) if last - first + 1 == len(columns) else columns


@untraced
def begin_pass(
    rule_of: Callable[[Any], Rule], model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[()], dict[str, Any]]:
    """Before a patched model's forward: an `AlibiPass` in place of the padding mask."""
    kwargs = {**dict(zip(_parameters(cast(Any, type(model))), args, strict=False)), **kwargs}
    inputs = kwargs.get("input_ids")
    inputs = kwargs.get("inputs_embeds") if inputs is None else inputs
    if inputs is None:
        return (), kwargs  # the model says what is wrong
    batch, queries = inputs.shape[:2]
    cache: Any = kwargs.get("past_key_values")
    past = 0 if cache is None else int(cache.get_seq_length())
    capacity = past + queries if cache is None else cache.get_mask_sizes(queries, 0)[0]
    settings = current(model)
    given, sizes = kwargs.get("attention_mask"), (batch, past, queries)
    bounded = isinstance(cache, WindowCache)
    if bounded:
        mask, skipped = _held(model, settings.sight, cache, given, sizes, inputs.device)
    else:
        mask, skipped = _padding(model, given, sizes, inputs.device), None
        mask = F.pad(mask, (0, max(0, capacity - mask.shape[1])))
    limited = settings.sight.limits(past + queries - 1) and not (bounded and queries == 1)
    _warn_of_older_slopes(settings.scaling, past)
    if _wants_weights(model, kwargs):
        settings = replace(settings, attention="eager")
    if bounded:
        past = mask.shape[1] - queries
    sight = settings.sight if limited else None
    kwargs["attention_mask"] = AlibiPass(
        rule_of(model), settings, mask, past, queries, sight, skipped
    )
    return (), kwargs


def reached(handed: Any, layer: nn.Module) -> AlibiPass:
    """What a layer was handed in the place of the `AlibiPass`, if it is one."""
    if not isinstance(handed, AlibiPass):
        raise RuntimeError(
            f"transformers built the bias of {type(layer).__name__} without asking the patched "
            f"model: the patch would have no effect with transformers {transformers_version()}"
        )
    return handed


@functools.cache
def _parameters(model_class: Hashable) -> tuple[str, ...]:
    return tuple(inspect.signature(cast(Any, model_class).forward).parameters)[1:]


def _padding(
    model: nn.Module, mask: Any, sizes: tuple[int, int, int], device: torch.device
) -> torch.Tensor:
    """(batch, keys), True for real keys, of a model's attention_mask.

    generate() hands models with a static cache causal masks of four dimensions; these say the same.
    """
    batch, past, queries = sizes
    seen = past + queries
    mask = mask.mask if isinstance(mask, Padding) else mask
    if mask is None:
        return torch.ones((batch, seen), dtype=torch.bool, device=device)
    if mask.ndim == 4 and mask.shape[:3] == (batch, 1, queries) and mask.shape[3] >= seen:
        seen_keys = mask if mask.dtype == torch.bool else mask == 0
        padding: torch.Tensor = seen_keys[:, 0, -1]
        if torch.equal(seen_keys, visible(padding, past, queries)):
            return padding.to(device)
    if mask.ndim != 2 or mask.shape[0] != batch or mask.shape[1] < seen:
        raise ValueError(
            f"attention_mask must have shape (batch, keys) = ({batch}, {seen}) for a patched "
            f"{type(model).__name__}, got {tuple(mask.shape)}"
        )
    return cast(torch.Tensor, mask != 0).to(device)


def _held(
    model: nn.Module,
    sight: Sight,
    cache: WindowCache,
    given: Any,
    sizes: tuple[int, int, int],
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Mask of the keys that a bounded cache is going to return, and how many tokens it skips.

    To a single query those are all that it sees, at the distances that it sees them; others have
    more keys than each of them sees.
    """
    shared = cache.shared
    held, seen = (shared.window, shared.sink), (sight.window, sight.sink)
    _validation.window_cache(held, seen, sight.causal_block)
    batch, past, queries = sizes
    total = past + queries
    keys = cache.get_mask_sizes(queries, 0)[0]
    given = given.mask if isinstance(given, Padding) else given
    _validation.padding_again(given is not None or shared.padding is None or past == 0)
    if given is None:
        mask = torch.ones((batch, keys), dtype=torch.bool, device=device)
        real = torch.full((batch,), total, device=device)
        shared.padding = None
    else:
        mask = _padding(model, given, sizes, device)[:, :total]
        real = mask.sum(dim=1)
        _validation.left_padding(_rows_with_holes(mask, real))
        shared.padding = None if bool((real == total).all()) else total - real
        mask = mask[:, total - keys :]
    skipped = (real - keys).clamp(min=0)
    return mask, skipped if bool(skipped.any()) else None


def _rows_with_holes(mask: torch.Tensor, real: torch.Tensor) -> list[int]:
    """Rows whose real tokens are not the last columns."""
    length = mask.shape[1]
    expected = torch.arange(length, device=mask.device) >= length - real[:, None]
    holes: list[int] = (mask != expected).any(dim=1).nonzero().flatten().tolist()
    return holes


def _warn_of_older_slopes(scaling: Scaling | None, past: int) -> None:
    if past and scaling_per(scaling) == "sequence":
        warnings.warn(
            f"{scaling!r} chooses its slopes by the length of the whole text, but the cached keys "
            "were computed under those of a shorter one; per='query' agrees with its own cache",
            stacklevel=2,
        )


def _wants_weights(model: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call asks for attention weights."""
    asked = kwargs.get("output_attentions")
    return bool(model.config.output_attentions if asked is None else asked)

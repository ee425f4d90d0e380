"""The attention that a family's `forward` calls in each layer, fused and eager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.weak import WeakIdKeyDictionary

from ntk_alibi import _checks
from ntk_alibi._torch_state import Way, is_recorded, way_of
from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.fused.dropout import Dropout, checked_dropout
from ntk_alibi.fused.merge import merge
from ntk_alibi.fused.prepared import attend_prepared, prepared_in_core
from ntk_alibi.integrations import graph_operator
from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.integrations.dense import attend_densely
from ntk_alibi.integrations.family import check_heads
from ntk_alibi.integrations.forward_pass import ALL, ForwardPass, Part, untraced
from ntk_alibi.integrations.making import Sizes, make_pass
from ntk_alibi.integrations.settings import form_of
from ntk_alibi.integrations.tokens import NAME, Tokens, version_of


class MaskTokens:
    """What a model's layers share of the masks that they get; a copy of the model has none.

    Attributes:
        tokens: the tokens of masks, where transformers did not pass `Tokens` to the layers, by the
            mask object, or by this object where there is no mask, each with what else its pass is
            made of.
        crossing: the last pass of cross-attention, which the steps of a generation share, with what
            it was made of, or None.
    """

    def __init__(self) -> None:
        self.tokens: Any = WeakIdKeyDictionary()
        self.crossing: tuple[Any, torch.Tensor, ForwardPass] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


@dataclass(eq=False)
class Attend:
    """The attention of one layer of a patched model, which its family's `forward` calls.

    Attributes:
        model: the patched model.
        family: its family.
        layer: the layer.
        number: the number of the layer.
        rule: the rule of the model's slopes.
        causal: whether queries see no keys ahead of them.
        crosses: whether keys are of other states, and have no bias.
        table: a `LayerTable` of the model's own bias, or None for slopes.
        tokens: what layers share of the masks that they get.
        ends: whether this is the last layer of a pass.
        shares: what layers of a pass that may share a bias have in common: the table, or None.
        in_graphs: the key by which the operator of compiled graphs finds it.
    """

    model: nn.Module
    family: Any
    layer: nn.Module
    number: int
    rule: ModelSlopes
    causal: bool
    crosses: bool = False
    table: Any = None
    tokens: Any = field(default_factory=MaskTokens)
    ends: bool = False
    shares: Any = field(init=False)
    in_graphs: int = field(init=False)

    def __post_init__(self) -> None:
        self.shares = None if self.table is None else self.table.table
        self.in_graphs = graph_operator.register(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Give a copy a key of its own."""
        vars(self).update(state)
        self.__post_init__()

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        mask: Any = None,
        cache: Any = None,
        scale: float | None = None,
        dropout: float = 0.0,
        weights: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the attention of queries to keys with the bias of this layer.

        Layers that pass the same mask object share what is made of it.

        Args:
            query: (batch, heads, queries, head_dim), the last query at the last key.
            key: (batch, heads or a divisor of them, keys, head_dim), without the keys of `cache`.
            value: as key.
            mask: what the layer got as its mask: transformers' `Tokens`, or the padding of keys as
                (batch, keys), not 0 for real ones, or as values to add to scores, (batch, 1, 1,
                keys): 0 for real ones and below -1000 for hidden ones.
            cache: a cache of transformers, which holds the keys before these and gets these, or
                None.
            scale: the factor of the products, 1/sqrt(head_dim) if None.
            dropout: the probability of dropping a weight; 0 unless the layer is in training.
            weights: whether the caller wants the weights, for which all are formed.

        Returns:
            Output (batch, heads, queries, head_dim), undefined for padded queries, and the weights
            (batch, heads, queries, keys), or None unless they are wanted or the patch is "eager".
            Weights have a column for each place of a static cache.

        Raises:
            ValueError: a shape is wrong, or the mask does something else than hide keys.
        """
        compiling = torch.compiler.is_dynamo_compiling()
        if compiling and graph_operator.fits(self, mask, cache, dropout, weights):
            operator, key_of_layer = graph_operator.layer_attention, self.in_graphs
            padding = mask.padding if isinstance(mask, Tokens) else mask
            return operator(query, key, value, padding, key_of_layer, scale), None
        return self._attend(query, key, value, mask, cache, scale, dropout, weights)

    @untraced
    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: Any,
        cache: Any,
        scale: float | None,
        dropout: float,
        weights: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if type(query) is not torch.Tensor:
            _checks.check_plain("query", query)
        own, dtype = self.family.code is None, value.dtype
        if own:
            query, key, value = self._checked(query, key, value)
        scale = query.shape[3] ** -0.5 if scale is None else scale
        forward_pass = mask.made if isinstance(mask, Tokens) else None
        if forward_pass is None:
            sizes = query.shape[0], query.shape[2], key.shape[2]
            forward_pass = self.pass_of(mask, sizes, query.device, cache, weights)
        heads = forward_pass.problem.shape[1] if forward_pass.heads is None else None
        if heads is not None and query.shape[1] != heads:
            raise ValueError(
                f"query must have the {heads} heads that {type(self.layer).__name__} had at the "
                f"patch, got {query.shape[1]}: patch again after changing heads"
            )
        way = way_of(query, key, value)
        ready = bias = None
        if way is Way.CORE and not (dropout or torch.is_grad_enabled()):
            ready = forward_pass.ready.get((self.shares, scale))
        if ready is None:
            bias = forward_pass.bias_of(self.number, self.table)
            way = way_of(query, key, value, bias=bias)
        fused = forward_pass.settings.attention == "fused"
        cache = cache if forward_pass.cache is None else forward_pass.cache
        norms: Any = None
        if cache is not None:
            append = cache.update
            if fused and way is Way.CORE and hasattr(cache, "append"):
                append, norms = cache.append, cache.norms  # whose keys may be `QuantizedRows`
            key, value = append(key, value, self.number)
            if ready is None and way is Way.CORE and is_recorded(key, value):
                way = Way.OPERATOR  # the keys before these are trained: a prefix, for instance
        batch, _, _, length = forward_pass.problem.shape
        capacity = key.shape[2]
        if (key.shape[0], capacity) != (batch, forward_pass.mask.shape[1]):
            raise ValueError(
                f"{CACHE} must hold the {length} tokens of {batch} rows that the model sees, got "
                f"{capacity} of {key.shape[0]}"
            )
        if capacity > length:  # the rest of a static cache is empty
            key, value = key[:, :, :length], value[:, :, :length]
        formed = None
        if fused:
            if ready is None:
                given = query, key.shape[2], scale, dropout
                ready = self._fused(forward_pass, cast(Any, bias), *given, way=way)
            attend, keeps_norms = ready
            kept = norms(self.number) if keeps_norms and norms is not None else None
            output = attend(query, key, value, norms=kept)[0]
        else:
            added = forward_pass.memo(bias, query.dtype, _eager_bias, forward_pass, bias, query)
            factors = forward_pass.factors(query)
            factors = None if factors is None else factors[..., None].float()
            output, formed = attend_densely(query, key, value, added, factors, scale, dropout)
            formed = formed if capacity == length else F.pad(formed, (0, capacity - length))
        return output.to(dtype) if own else output, formed

    def _fused(
        self,
        forward_pass: ForwardPass,
        bias: Any,
        query: torch.Tensor,
        keys: int,
        scale: float,
        dropout: float,
        *,
        way: Way,
    ) -> tuple[Callable[..., tuple[Any, Any]], bool]:
        """Return a function of query, key, value and `norms`, and whether norms are of use.

        The function returns the output first. Layers with the same bias share it where torch
        records nothing.
        """
        like = None if way is Way.CORE else query
        factors, dropped = forward_pass.factors(like), None
        if dropout:
            dropped = checked_dropout(dropout, None, query, keys)
            if dropped is not None and forward_pass.heads is not None:
                dropped = dropped.part(head=forward_pass.heads.start)
        parts = forward_pass.parts(bias, like)
        keeps_norms = way is Way.CORE and any(part.keeps_norms for part in parts)
        if way is not Way.CORE or dropped is not None or len(parts) > 1:
            return partial(_attend_to_parts, parts, scale, factors, dropped, way), keeps_norms
        ready = prepared_in_core(parts[0].bias, parts[0].problem, scale, factors), keeps_norms
        if forward_pass.alike and not torch.is_grad_enabled():
            forward_pass.ready[self.shares, scale] = ready
        return ready

    def check_heads(self) -> None:
        """Check that the layer computes all heads."""
        check_heads(self.layer, self.model, self.rule.heads)

    def takes_stock(self, weights: Any) -> bool:
        """Return whether a layer may go on by its own arithmetic, in an eager pass."""
        return bool(weights) or form_of(self.model) == "eager"

    def pass_of(
        self, mask: Any, sizes: Sizes, device: torch.device, cache: Any, weights: bool
    ) -> ForwardPass:
        """Return the pass of a layer's tokens: the previous layer's pass, if they are the same."""
        tokens = mask
        if not isinstance(mask, Tokens):
            if self.family.code is not None and mask is None and not self.crosses:
                raise RuntimeError(
                    f"transformers built the mask of {type(self.layer).__name__} without asking "
                    f"the patched model, whose config._attn_implementation must be {NAME!r}, got "
                    f"{cast(Any, self.model).config._attn_implementation!r}"
                )
            tokens = self.tokens_of(mask, sizes, device, cache, weights)
        if tokens.made is None:
            tokens.made = make_pass(self, tokens, sizes, device, cache, weights=weights)
            tokens.padding = None  # which keeps these tokens as long as it lives
        return cast(ForwardPass, tokens.made)

    def tokens_of(
        self,
        mask: Any,
        sizes: Sizes,
        device: torch.device,
        cache: Any = None,
        weights: bool = False,
    ) -> Tokens:
        """Return the tokens of a mask that is not transformers' `Tokens`, which layers share."""
        # Threads that share a model have caches of different lengths.
        past = 0 if cache is None else int(cache.get_seq_length(self.number))
        of = version_of(mask), sizes, past, device, weights
        owner, shared = self.tokens if mask is None else mask, self.tokens.tokens
        known = shared.get(owner)
        # The first layer begins a pass, and the others go on, also when they run again.
        if self.number > 0 and known is not None and known[0] == of:
            tokens: Tokens = known[1]
        else:
            hidden = self.family.masks_hidden and getattr(mask, "ndim", 2) == 4
            tokens = Tokens(~mask if hidden and mask.dtype == torch.bool else mask)
        if mask is None and self.ends and not torch.is_grad_enabled():
            shared.pop(owner, None)  # what does not run again is not kept
        else:
            shared[owner] = of, tokens
        return tokens

    def _checked(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return what a family that others wrote computed, checked, in one dtype."""
        for name, x in (("query", query), ("key", key)):
            if x.ndim != 4:
                raise ValueError(
                    f"{name} must have shape (batch, heads, tokens, head_dim), got {tuple(x.shape)}"
                )
        batch, heads, _, channels = query.shape
        if heads != self.rule.heads:
            raise ValueError(
                f"query must have the {self.rule.heads} heads of the model's slopes, got {heads}"
            )
        of_keys, keys = key.shape[1:3]
        wanted = batch, of_keys, keys, channels
        if tuple(key.shape) != wanted or tuple(value.shape) != wanted or heads % max(of_keys, 1):
            raise ValueError(
                f"key and value must have shape ({batch}, {heads} or a divisor, keys, {channels}), "
                f"got {tuple(key.shape)} and {tuple(value.shape)}"
            )
        if query.dtype == key.dtype == value.dtype:
            return query, key, value
        wide = torch.promote_types(torch.promote_types(query.dtype, key.dtype), value.dtype)
        return query.to(wide), key.to(wide), value.to(wide)  # norms of queries under autocast


def _attend_to_parts(
    parts: list[Part],
    scale: float,
    factors: Any,
    dropped: Dropout | None,
    way: Way,
    query: torch.Tensor,
    key: Any,
    value: Any,
    *,
    norms: Any = None,
) -> tuple[torch.Tensor, Any]:
    """Return output and logsumexp (or None) of `ntk_alibi.attention` to all parts together."""
    results = []
    for part in parts:
        keys, whole = part.keys, part.keys == ALL
        results.append(
            attend_prepared(
                query,
                key if whole else key[:, :, keys],
                value if whole else value[:, :, keys],
                part.bias,
                part.problem,
                scale,
                factors,
                way=way,
                norms=norms if part.keeps_norms else None,
                dropout=dropped and dropped.part(key=keys.start or 0),
                log=len(parts) > 1,
            )
        )
    return results[0] if len(results) == 1 else merge(*zip(*results, strict=True))


def _eager_bias(forward_pass: ForwardPass, bias: Any, like: torch.Tensor) -> torch.Tensor:
    """Return the bias of all pairs, float32, its dtype's least value for hidden keys."""
    values, seen = forward_pass.pairs(bias, like)
    return values.masked_fill(~seen, torch.finfo(values.dtype).min)

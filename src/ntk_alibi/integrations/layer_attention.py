"""The attention of a patched layer: what its family's forward calls, fused and eager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import nn
from torch.nn import functional as F

from ntk_alibi import _arrays, _checks
from ntk_alibi.biases.base import BiasObject
from ntk_alibi.fused.dropout import checked_dropout
from ntk_alibi.fused.merge import merge
from ntk_alibi.fused.prepared import attend_prepared
from ntk_alibi.integrations.cache_argument import CACHE
from ntk_alibi.integrations.forward_pass import ForwardPass, untraced
from ntk_alibi.integrations.transformers_versions import transformers_version

#: Returns the attention of a layer from the layer, the mask that it got, the number of heads that
#: it computes, its input and its product with the outputs of its heads: a `PassAttention`, or a
#: `TraceableAttention`, which is called in the same way.
AttentionOf: TypeAlias = Callable[[nn.Module, Any, int, torch.Tensor, Any], Any]

#: Numbers that a mask adds to scores hide a key below this one: float32 weights are then 0.
HIDES = -1e3


@dataclass(frozen=True)
class PassAttention:
    """The attention of one layer in a forward pass.

    Attributes:
        forward_pass: the pass.
        layer: the number of the layer.
        heads: the heads that this rank computes, a slice, or None for all.
    """

    forward_pass: ForwardPass
    layer: int
    heads: slice | None = None

    @property
    def stock(self) -> PassAttention | None:
        """Itself if it is eager, without factors of scores, which transformers does not have."""
        settings = self.forward_pass.settings
        stock = settings.log_n is self.forward_pass.cache is None
        return self if settings.attention == "eager" and stock else None

    @untraced
    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: Any,
        scale: float,
        dropout: float = 0.0,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return attention output (batch, heads, queries, head_dim), and weights if eager, or None.

        Weights have a column for each place of a static cache. The output of padded queries is
        undefined.

        Args:
            query: (batch, heads, queries, head_dim).
            key: (batch, 1 or heads, queries, head_dim).
            value: (batch, 1 or heads, queries, head_dim).
            cache: a cache, or None.
            scale: the factor of the products.
            dropout: the probability of dropping a weight.
        """
        forward_pass = self.forward_pass
        _checks.plain("query", query)
        bias = forward_pass.bias_of(self.layer)
        if forward_pass.shared is not None:
            if dropout:
                raise ValueError(
                    f"attention dropout must be 0 in a model patched with group, got {dropout}"
                )
            return forward_pass.shared.attend(self, bias, query, key, value, scale), None
        form = forward_pass.settings.attention
        in_core = form == "fused" and not _arrays.needs_torch(query, key, value, bias)
        cache = cache if forward_pass.cache is None else forward_pass.cache
        growing: Any = cache if in_core and hasattr(cache, "append") else None  # a `GrowingCache`
        if cache is not None:
            append: Any = cache.update if growing is None else cache.append
            key, value = append(key, value, self.layer)
        length, capacity = forward_pass.problem.shape[3], key.shape[2]
        if key.shape[0] != len(query) or capacity < length:
            raise ValueError(
                f"{CACHE} must hold the {length} tokens of {len(query)} rows that the "
                f"model sees, got {capacity} of {key.shape[0]}"
            )
        key, value = key[:, :, :length], value[:, :, :length]
        if form == "eager":
            made = eager_bias, forward_pass, bias, query
            added = forward_pass.memo(bias, query.dtype, *made)
            factors = self.own_factors(query)
            factors = None if factors is None else factors[..., None].float()
            output, weights = attend_densely(query, key, value, added, factors, scale, dropout)
            return output, weights if capacity == length else F.pad(weights, (0, capacity - length))
        like = None if in_core else query
        parts_of_keys = forward_pass.parts(bias, like, self.heads)
        dropped = checked_dropout(dropout, None, query, length) if dropout else None
        if dropped is not None and self.heads is not None:
            dropped = dropped.part(head=self.heads.start)
        results = [
            attend_prepared(
                query,
                part.of(key),
                part.of(value),
                part.bias,
                part.problem,
                scale,
                self.own_factors(like),
                in_core=in_core,
                norms=growing.norms(self.layer)
                if part.keeps_norms and growing is not None
                else None,
                dropout=dropped and dropped.part(key=part.keys.start or 0),
                log=len(parts_of_keys) > 1,
            )
            for part in parts_of_keys
        ]
        if len(results) == 1:
            return results[0][0], None
        return cast(torch.Tensor, merge(*zip(*results, strict=True))[0]), None

    def own_factors(self, like: Any) -> Any:
        """Return the factors of scores of this rank's heads, or None."""
        factors = self.forward_pass.factors(like)
        if factors is None or self.heads is None or factors.shape[1] == 1:
            return factors
        return factors[:, self.heads]


def checked_pass(layer: nn.Module, passed: Any) -> ForwardPass:
    """Return the pass that a layer got in place of a mask, if it is one."""
    if not isinstance(passed, ForwardPass):
        raise RuntimeError(
            f"transformers built the mask of {type(layer).__name__} without asking the patched "
            f"model: the patch would have no effect with transformers {transformers_version()}"
        )
    return passed


def check_heads(layer: nn.Module, hidden_states: torch.Tensor, computed: int, sloped: int) -> None:
    """Check that a layer computes all heads of its input, and that the slopes are theirs."""
    _checks.plain("hidden_states", hidden_states)
    every = hidden_states.shape[-1] // cast(int, layer.head_dim)
    if not every == computed == sloped:
        raise ValueError(
            f"{type(layer).__name__} must compute all {every} heads with their slopes, got "
            f"{computed} heads and slopes of {sloped}: the slopes of some heads are not those of a "
            "model with so few; ntk_alibi.tp_plan divides a model for tensor parallelism"
        )


def of_layer(
    layer: nn.Module, passed: Any, heads: int, hidden_states: torch.Tensor, output: nn.Module
) -> PassAttention:
    """Return the attention of a layer, an `AttentionOf`.

    Args:
        layer: the layer.
        passed: what the layer got in place of a mask.
        heads: the number of heads that the layer computes.
        hidden_states: the input of the layer, (batch, queries, channels of all heads).
        output: the layer's product with the outputs of its heads, whose weight is divided among the
            ranks of tensor parallelism.
    """
    passed = checked_pass(layer, passed)
    sloped = passed.rule.heads
    check_heads(layer, hidden_states, heads, sloped)
    mesh: Any = getattr(getattr(output, "weight", None), "device_mesh", None)
    own = None
    if mesh is not None:
        if any(isinstance(bias, nn.Module) for bias in passed.own.values()):
            raise ValueError(
                "scaling must be a bias object under tensor parallelism, whose ranks have the "
                "gradients of their own heads only, got a module"
            )
        if sloped % mesh.size():
            raise ValueError(f"tp_size must divide the model's {sloped} heads, got {mesh.size()}")
        if passed.settings.attention == "eager":
            raise ValueError(
                "attention must be 'fused' under tensor parallelism, and "
                "output_attentions False, got 'eager'"
            )
        count = sloped // mesh.size()
        own = slice(mesh.get_local_rank() * count, (mesh.get_local_rank() + 1) * count)
    return PassAttention(passed, cast(int, layer.layer_idx), own)


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


def eager_bias(forward_pass: ForwardPass, bias: BiasObject, like: torch.Tensor) -> torch.Tensor:
    """Return the bias of all pairs, float32, its dtype's least number for hidden keys."""
    numbers, seen = forward_pass.pairs(bias, like)
    return numbers.masked_fill(~seen, torch.finfo(numbers.dtype).min)

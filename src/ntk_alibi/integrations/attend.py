"""The attention that a family's `forward` calls in each layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from ntk_alibi import _arrays, _checks
from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.integrations import own_bias
from ntk_alibi.integrations.forward_pass import ForwardPass, limits_up_to, problem_of, untraced
from ntk_alibi.integrations.layer_attention import HIDES, PassAttention
from ntk_alibi.integrations.settings import current
from ntk_alibi.masks import Mask

#: The attribute of a patched model that keeps the pass that its layers share.
_LAST = "_ntk_alibi_last_pass"

BIDIRECTIONAL = Mask(causal=False)

#: Message of torch where it should compile a patched model in one graph.
_NO_GRAPH = (
    "ntk_alibi: fullgraph must be False for a model of this family, whose patch reads numbers of "
    "the mask, or the model without patch"
)


class LastPass:
    """The pass that a model's layers share; copies and pickles of it hold none."""

    made: tuple[Any, ...] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return LastPass, ()


@dataclass(frozen=True, eq=False)
class Attend:
    """The attention of one layer of a patched model, which its family's `forward` calls.

    Attributes:
        model: the patched model.
        layer: the number of the layer.
        rule: the rule of the model's slopes.
        causal: whether queries see no keys ahead of them.
    """

    model: nn.Module
    layer: int
    rule: ModelSlopes
    causal: bool

    @partial(untraced, reason=_NO_GRAPH)
    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        mask: torch.Tensor | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
        weights: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the attention of queries to keys with the bias of this layer.

        Layers that hand over the same mask object share what is made of it.

        Args:
            query: (batch, heads, queries, head_dim), the last query at the last key.
            key: (batch, heads or a divisor of them, keys, head_dim), those of a cache included.
            value: as key.
            mask: the padding of keys as (batch, keys), not 0 for real ones, or as numbers to add to
                scores, (batch, 1, 1, keys): 0 for real ones and below -1000 for hidden ones.
            scale: the factor of the products, 1/sqrt(head_dim) if None.
            dropout: the probability of dropping a weight; 0 unless the layer is in training.
            weights: whether the caller wants the weights, for which all are formed.

        Returns:
            Output (batch, heads, queries, head_dim), undefined for padded queries, and the weights
            (batch, heads, queries, keys), or None unless they are wanted or the patch is "eager".

        Raises:
            ValueError: a shape is wrong, or the mask does something else than hide keys.
        """
        batch, heads, _, channels = _shape("query", query)
        if heads != self.rule.heads:
            raise ValueError(
                f"query must have the {self.rule.heads} heads of the model's slopes, got {heads}"
            )
        of_keys, keys = _shape("key", key)[1:3]
        wanted = batch, of_keys, keys, channels
        if tuple(key.shape) != wanted or tuple(value.shape) != wanted or heads % max(of_keys, 1):
            raise ValueError(
                f"key and value must have shape ({batch}, {heads} or a divisor, keys, {channels}), "
                f"got {tuple(key.shape)} and {tuple(value.shape)}"
            )
        dtype = value.dtype
        if not query.dtype == key.dtype == dtype:  # norms of queries and keys under autocast
            wide = torch.promote_types(torch.promote_types(query.dtype, key.dtype), dtype)
            query, key, value = query.to(wide), key.to(wide), value.to(wide)
        attention = PassAttention(self._pass(query, keys, mask, weights), self.layer)
        scale = channels**-0.5 if scale is None else scale
        output, formed = attention(query, key, value, None, scale, dropout)
        return output.to(dtype), formed

    def _pass(self, query: torch.Tensor, keys: int, mask: Any, weights: bool) -> ForwardPass:
        """Return the pass of these sizes and this mask: that of the layer before, if it is it."""
        settings, last = current(self.model), getattr(self.model, _LAST)
        version = None if mask is None or mask.is_inference() else mask._version
        sizes = len(query), query.shape[2], keys, weights, query.device, version
        made = last.made
        if made is not None and made[0] is mask and made[1] is settings and made[2] == sizes:
            kept: ForwardPass = made[3]
            return kept
        _checks.whole_sequences()
        if _arrays.is_tracing():
            raise ValueError(
                f"model must be a {type(self.model).__name__} without patch where torch.export, "
                "make_fx or FakeTensorMode trace it, since a patch reads numbers of the mask"
            )
        real = real_keys(mask, len(query), keys, query.device)
        limits = limits_up_to(keys - 1, settings.mask) if self.causal else BIDIRECTIONAL
        at = slice(keys - query.shape[2], keys)
        problem = problem_of(real, at, self.rule, limits, unpadded=mask is None)
        own = own_bias.held_by(self.model, settings.bias)
        of_pass = replace(settings, attention="eager") if weights else settings
        forward_pass = ForwardPass(real, problem, self.rule, of_pass, own=own)
        last.made = mask, settings, sizes, forward_pass
        return forward_pass


def _shape(name: str, value: torch.Tensor) -> tuple[int, ...]:
    if value.ndim != 4:
        raise ValueError(
            f"{name} must have shape (batch, heads, tokens, head_dim), got {tuple(value.shape)}"
        )
    return tuple(value.shape)


def real_keys(mask: Any, batch: int, keys: int, device: torch.device) -> torch.Tensor:
    """Return a mask of padding, in a form that `Attend` takes, as (batch, keys), True if real."""
    if mask is None:
        return torch.ones((batch, keys), dtype=torch.bool, device=device)
    shape = tuple(mask.shape)
    if shape == (batch, keys):
        return cast(torch.Tensor, mask.to(device) != 0)
    if mask.ndim != 4 or shape[0] not in (1, batch) or shape[1:] != (1, 1, keys):
        raise ValueError(
            f"mask must have shape ({batch}, {keys}), or ({batch}, 1, 1, {keys}) of numbers to add "
            f"to scores, got {shape}"
        )
    numbers = mask[:, 0, 0].to(device)
    if numbers.dtype == torch.bool:
        raise ValueError("mask must be of numbers to add to scores with four dimensions, got bool")
    real: torch.Tensor = numbers == 0
    if real.is_cpu and not bool((real | (numbers < HIDES)).all()):
        raise ValueError(
            f"mask must be 0 for real keys and below {HIDES:g} for hidden ones, got other numbers"
        )
    return real.expand(batch, keys)


def start(model: nn.Module) -> None:
    """Let a model's layers share a pass."""
    setattr(model, _LAST, LastPass())


def stop(model: nn.Module) -> None:
    """Undo `start`."""
    delattr(model, _LAST)


def forget(model: nn.Module, *_: Any) -> None:
    """Forget the pass before a model's forward, and after it."""
    getattr(model, _LAST).made = None

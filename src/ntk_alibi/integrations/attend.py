"""The attention that a family's `forward` calls in each layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn

from ntk_alibi import _checks
from ntk_alibi.integrations import graph_operator, passes
from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.integrations.family import check_heads
from ntk_alibi.integrations.forms import eager, fused
from ntk_alibi.integrations.forwards import running_tokens
from ntk_alibi.integrations.passes.base import Pass
from ntk_alibi.integrations.passes.inputs import PassInputs, Sizes
from ntk_alibi.integrations.passes.mask_values import check_tensor
from ntk_alibi.integrations.tokens import Tokens, untraced

#: The forms that attend by a pass, by the names that `patch` has for them.
FORMS: dict[str, Callable[..., Any]] = {
    "fused": fused.compute_output,
    "eager": eager.compute_output_and_weights,
}


@dataclass(eq=False)
class Attend:
    """The attention of one layer of a patched model, which its family's `forward` calls.

    Attributes:
        patch: the `Patch` of the model.
        layer: the layer.
        number: the number of the layer.
        causal: whether queries see no keys ahead of them.
        crosses: whether keys are of other states, and have no bias.
        table: a `LayerTable` of the model's own bias, or None for slopes.
        ends: whether this is the last layer of a pass.
        family: the family of the model.
        shares: what layers of a pass that may share a bias have in common: the table, or None.
    """

    patch: Any
    layer: nn.Module
    number: int
    causal: bool
    crosses: bool = False
    table: Any = None
    ends: bool = False
    family: Any = field(init=False)
    shares: Any = field(init=False)

    def __post_init__(self) -> None:
        self.family = self.patch.family
        self.shares = None if self.table is None else self.table.table

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
            mask: what the layer got as its mask: `Tokens`, or the padding of keys as
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
        if compiling and graph_operator.fits(self, query, mask, cache, dropout, weights):
            inputs = query, key, value, mask, cache, scale, dropout
            return graph_operator.attend_in_graph(self, *inputs), None
        return self.compute(query, key, value, mask, cache, scale, weights, dropout)

    @untraced
    def compute(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: Any,
        cache: Any,
        scale: float | None,
        weights: bool,
        dropout: float,
        seed: int | None = None,
        rows: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute what a call returns, outside of a graph.

        `seed` is the seed of dropout, or None to draw one; `rows` are the rows of the layer's
        table, or None to read them.
        """
        if type(query) is not torch.Tensor:
            _checks.check_plain("query", query)
        own, dtype = self.family.code is None, value.dtype
        if own:
            query, key, value = self._in_one_dtype(query, key, value)
        scale = query.shape[3] ** -0.5 if scale is None else scale
        forward_pass = mask.forward_pass if isinstance(mask, Tokens) else None
        if forward_pass is None:
            sizes = query.shape[0], query.shape[2], key.shape[2]
            forward_pass = self.pass_of(mask, sizes, query.device, cache, weights)
        heads = forward_pass.problem.shape[1]
        if query.shape[1] != heads:
            raise ValueError(
                f"query must have the {heads} heads that {type(self.layer).__name__} had at the "
                f"patch, got {query.shape[1]}: patch again after changing heads"
            )
        compute = FORMS[forward_pass.settings.attention]
        output, formed = compute(
            self, forward_pass, query, key, value, cache, scale, dropout, seed, rows
        )
        return output.to(dtype) if own else output, formed

    def gradients(
        self,
        gradient: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: Any,
        mask: torch.Tensor | None,
        scale: float | None,
        dropout: float,
        seed: int | None,
        rows: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the gradients of queries, of all keys and values, and of rows, in a graph."""
        sizes = query.shape[0], query.shape[2], key.shape[2]
        tokens = self.tokens_of(mask, sizes, query.device, cache)
        forward_pass = self.pass_of(tokens, sizes, query.device, cache, False)
        key, value, _ = self.with_cached(forward_pass, key, value, cache)
        scale = query.shape[3] ** -0.5 if scale is None else scale
        of_query, of_key, of_value, of_table = fused.compute_gradients_of_layer(
            self, forward_pass, query, key, value, scale, gradient, dropout, seed, rows
        )
        of_rows = None
        if rows is not None:
            of_rows = self.table.table.rows_gradient(forward_pass.problem, of_table).to(rows.dtype)
        return of_query, of_key, of_value, of_rows

    def with_cached(
        self, forward_pass: Pass, key: Any, value: Any, cache: Any, append: Any = None
    ) -> tuple[Any, Any, int]:
        """Return the keys and values of a pass, and how many places of a cache are empty.

        Args:
            forward_pass: the pass.
            key: the new keys.
            value: the new values.
            cache: the cache that holds the keys before these and gets these, or None.
            append: what appends to it, `update` if None.
        """
        if cache is not None:
            key, value = (append or cache.update)(key, value, self.number)
        batch, _, _, length = forward_pass.problem.shape
        places = key.shape[2]
        if (key.shape[0], places) != (batch, forward_pass.real.shape[1]):
            raise ValueError(
                f"{CACHE} must hold the {length} tokens of {batch} rows that the model sees, got "
                f"{places} of {key.shape[0]}"
            )
        if places > length:
            key, value = key[:, :, :length], value[:, :, :length]
        return key, value, places - length

    def check_heads(self) -> None:
        """Check that the layer computes all heads."""
        check_heads(self.layer, self.patch.model, self.patch.rule.heads)

    def is_eager(self, weights: Any) -> bool:
        """Return whether the layer attends eagerly: in that form, or for a caller's weights."""
        return bool(weights) or self.patch.settings.attention == "eager"

    def pass_of(
        self, mask: Any, sizes: Sizes, device: torch.device, cache: Any, weights: bool
    ) -> Pass:
        """Return the pass of a layer's tokens: the previous layer's pass, if they are the same."""
        tokens = mask
        if not isinstance(mask, Tokens):
            if self.patch.hands_over:
                raise RuntimeError(
                    f"mask of {type(self.layer).__name__} must be the tokens that its patched "
                    f"model hands over, got {_checks.briefly(mask)}: call the model"
                )
            check_tensor("attention_mask", mask)
            weights = weights or getattr(running_tokens(), "weights", False)
            tokens = self.tokens_of(mask, sizes, device, cache, weights)
        if tokens.forward_pass is None:
            inputs = PassInputs.of(self, tokens, sizes, device, cache, weights=weights)
            tokens.forward_pass = passes.begin(inputs)
            tokens.mask = None  # which keeps these tokens as long as it lives
        return cast(Pass, tokens.forward_pass)

    def tokens_of(
        self,
        mask: Any,
        sizes: Sizes,
        device: torch.device,
        cache: Any = None,
        weights: bool = False,
    ) -> Tokens:
        """Return the tokens of a mask that a layer or a graph got in place of them."""
        # Threads that share a model have caches of different lengths.
        past = 0 if cache is None else int(cache.get_seq_length(self.number))
        tokens: Tokens = self.patch.memory.tokens_of(mask, (sizes, past, device, weights), self)
        return tokens

    def _in_one_dtype(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return what a family that others wrote computed, checked, in one dtype."""
        for name, x in (("query", query), ("key", key)):
            if x.ndim != 4:
                raise ValueError(
                    f"{name} must have shape (batch, heads, tokens, head_dim), got {tuple(x.shape)}"
                )
        batch, heads, _, channels = query.shape
        if heads != self.patch.rule.heads:
            raise ValueError(
                f"query must have the {self.patch.rule.heads} heads of the model's slopes, got "
                f"{heads}"
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

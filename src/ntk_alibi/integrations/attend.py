"""The attention that a family's `forward` calls in each layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn

from ntk_alibi import _checks
from ntk_alibi.integrations import attention_forms, graph_operator, pass_kinds
from ntk_alibi.integrations.arguments import CACHE, check_not_repeated
from ntk_alibi.integrations.caller_masks import check_tensor
from ntk_alibi.integrations.forward_pass import LayerCall, Pass
from ntk_alibi.integrations.forwards import running_tokens
from ntk_alibi.integrations.tokens import Tokens, of_same_patch, untraced

#: The forms that attend by a pass, by the names that `patch` has for them.
FORMS: dict[str, Callable[..., Any]] = {
    "fused": attention_forms.compute_output,
    "eager": attention_forms.compute_output_and_weights,
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
        table: the `Table` of the layer, or None for slopes.
        reads: whether the layer is the first one of a pass that reads its table.
        ends: whether this is the last layer of a pass.
        family: the family of the model.
    """

    patch: Any
    layer: nn.Module
    number: int
    causal: bool
    crosses: bool = False
    table: Any = None
    reads: bool = False
    ends: bool = False
    family: Any = field(init=False)

    def __post_init__(self) -> None:
        self.family = self.patch.family

    @property
    def index(self) -> int:
        """The number of the layer in a cache: as transformers', which may number layers anew."""
        own = getattr(self.layer, "layer_idx", None)
        return self.number if own is None else own

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
        scale = query.shape[3] ** -0.5 if scale is None else scale
        call = LayerCall(query, key, value, mask, cache, scale, dropout, weights)
        if torch.compiler.is_dynamo_compiling() and graph_operator.fits(self, call):
            return graph_operator.attend_in_graph(self, call), None
        return self.compute(call)

    @untraced
    def compute(self, call: LayerCall) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute what a call returns, outside of a graph."""
        if type(call.query) is not torch.Tensor:
            _checks.check_plain("query", call.query)
        own, dtype = self.family.code is None, call.value.dtype
        if own:
            call = self._in_one_dtype(call)
        forward_pass: Pass | None = getattr(call.mask, "forward_pass", None)
        if forward_pass is None:
            forward_pass = self.pass_of(call)
        heads = forward_pass.problem.shape[1]
        if call.query.shape[1] != heads:
            raise ValueError(
                f"query must have the {heads} heads that {type(self.layer).__name__} had at the "
                f"patch, got {call.query.shape[1]}: patch again after changing heads"
            )
        output, formed = FORMS[forward_pass.settings.attention](self, forward_pass, call)
        if own:
            output = of_same_patch(output, self.patch.serial).to(dtype)
        return output, formed

    def gradients(
        self, call: LayerCall, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the gradients of queries, of all keys and values, and of rows, in a graph."""
        tokens = self.tokens_of(call)
        forward_pass = self.pass_of(call._replace(mask=tokens))
        key, value, _ = self.with_cached(forward_pass, call)
        call = call._replace(key=key, value=value)
        of = attention_forms.compute_gradients_of_layer(self, forward_pass, call, gradient)
        of_rows = None
        if call.rows is not None:
            of_rows = self.table.rows_gradient(forward_pass.problem, of.table)
            of_rows = of_rows.to(call.rows.dtype)
        return of.query, of.key, of.value, of_rows

    def with_cached(
        self, forward_pass: Pass, call: LayerCall, append: Any = None
    ) -> tuple[Any, Any, int]:
        """Return all keys and values of a pass, and how many places of a cache are empty.

        Args:
            forward_pass: the pass.
            call: the call, which has the new keys and values.
            append: what appends them to the cache, `update` if None.
        """
        key, value = call.key, call.value
        if call.cache is not None:
            if self.number == 0 and key.shape[2] > 1 and self.may_repeat():
                check_not_repeated(key, call.cache, self.index)
            key, value = (append or call.cache.update)(key, value, self.index)
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

    def may_repeat(self) -> bool:
        """Return whether the cache may hold the tokens of this pass already."""
        return bool(getattr(running_tokens(), "may_repeat", False))

    def check_heads(self) -> None:
        """Check that the layer computes all heads of its model, and that the slopes are theirs."""
        layer: Any = self.layer
        computed = layer.n_heads if hasattr(layer, "n_heads") else layer.num_heads
        every = self.patch.model.config.hidden_size // layer.head_dim
        sloped = self.patch.rule.heads
        if not every == computed == sloped:
            raise ValueError(
                f"{type(layer).__name__} must compute all {every} heads with their slopes, got "
                f"{computed} heads and slopes of {sloped}: some heads of a model have other slopes "
                "than a model with so few; vLLM divides the heads of a model over processes"
            )

    def is_eager(self, weights: Any) -> bool:
        """Return whether the layer attends eagerly: in that form, or for a caller's weights."""
        form = self.patch.settings.attention
        return form == "eager" or (form == "fused" and bool(weights))

    def pass_of(self, call: LayerCall) -> Pass:
        """Return the pass of a layer's tokens: the previous layer's pass, if they are the same."""
        tokens = call.mask
        if not isinstance(tokens, Tokens):
            if self.patch.hands_over:
                raise RuntimeError(
                    f"mask of {type(self.layer).__name__} must be the tokens that its patched "
                    f"model hands over, got {_checks.briefly(tokens)}: call the model"
                )
            check_tensor("attention_mask", tokens)
            weights = call.weights or getattr(running_tokens(), "weights", False)
            call = call._replace(weights=weights)
            tokens = self.tokens_of(call)
        if tokens.forward_pass is None:
            tokens.forward_pass = pass_kinds.begin(self, tokens, call)
            tokens.mask = None  # which keeps these tokens as long as it lives
        return cast(Pass, tokens.forward_pass)

    def tokens_of(self, call: LayerCall) -> Tokens:
        """Return the tokens of a mask that a layer or a graph got in place of them."""
        # Threads that share a model have caches of different lengths.
        past = 0 if call.cache is None else int(call.cache.get_seq_length(self.index))
        of = call.sizes, past, call.query.device, call.weights
        tokens: Tokens = self.patch.memory.tokens_of(call.mask, of, running_tokens(), self)
        return tokens

    def _in_one_dtype(self, call: LayerCall) -> LayerCall:
        """Return what a family that others wrote computed, checked, in one dtype."""
        query, key, value = call.query, call.key, call.value
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
            return call
        wide = torch.promote_types(torch.promote_types(query.dtype, key.dtype), value.dtype)
        # Norms of queries are wider under autocast.
        return call._replace(query=query.to(wide), key=key.to(wide), value=value.to(wide))

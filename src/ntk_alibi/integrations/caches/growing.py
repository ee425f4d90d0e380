"""A key-value cache for long generation that does not copy all keys at every token."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from transformers.cache_utils import Cache, DynamicLayer

from ntk_alibi import _checks
from ntk_alibi.fused.key_norms import KeyNorms


class GrowingLayer(DynamicLayer):
    """One layer's keys and values as the filled part of buffers that double when they are full.

    Attributes:
        keys: (batch, heads, tokens, head_dim), a view of its buffer.
        values: (batch, heads, tokens, head_dim), a view of its buffer.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._least_capacity = capacity
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None
        self._norms = KeyNorms()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append keys and values, and return all of them."""
        if torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad):
            self._buffers = None  # writing in place would break the graph
            result: tuple[torch.Tensor, torch.Tensor] = super().update(
                key_states, value_states, *args, **kwargs
            )
            return result
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        length = self.get_seq_length()
        total = length + key_states.shape[2]
        keys, values = self._room_for(total, length, key_states, value_states)
        keys[:, :, length:total] = key_states
        values[:, :, length:total] = value_states
        self.keys, self.values = keys[:, :, :total], values[:, :, :total]
        return self.keys, self.values

    def norms(self) -> KeyNorms:
        """Return the norms of all keys held, by which `ntk_alibi.attention` skips keys."""
        if self._norms.length > self.get_seq_length():
            self._norms = KeyNorms()
        return self._norms.update(self._held()[0])

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens; new tokens take their place."""
        super().crop(tokens_to_remove)
        self._norms = KeyNorms()

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Reorder the rows of the batch by beam_idx."""
        super().reorder_cache(beam_idx)
        self._norms = KeyNorms()

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch."""
        super().batch_repeat_interleave(repeats)
        self._norms = KeyNorms()

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some rows of the batch."""
        super().batch_select_indices(indices)
        self._norms = KeyNorms()

    def reset(self) -> None:
        """Remove all tokens and the buffers."""
        self._buffers = self.keys = self.values = None
        self.is_initialized = False  # older versions of transformers would fill with zeros instead
        self._norms = KeyNorms()
        super().reset()

    def _room_for(
        self, total: int, length: int, key_states: torch.Tensor, value_states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return buffers for `total` tokens whose first `length` are those held now."""
        if self._buffers is not None and self._holds(self._buffers, total, length):
            return self._buffers
        capacity = max(self._least_capacity, 2 * total)  # unwritten pages take no memory yet
        buffers = []
        for i, states in enumerate((key_states, value_states)):
            batch, heads, _, head_dim = states.shape
            buffer = states.new_empty((batch, heads, capacity, head_dim))
            if length:
                buffer[:, :, :length] = self._held()[i]
            buffers.append(buffer)
        self._buffers = (buffers[0], buffers[1])
        return self._buffers

    def _holds(self, buffers: tuple[torch.Tensor, torch.Tensor], total: int, length: int) -> bool:
        """Return whether the buffers have room, and begin with the tokens held now."""
        if buffers[0].shape[2] < total:
            return False
        return length == 0 or all(
            held.data_ptr() == buffer.data_ptr() and held.shape[0] == buffer.shape[0]
            for held, buffer in zip(self._held(), buffers, strict=True)
        )

    def _held(self) -> tuple[torch.Tensor, torch.Tensor]:
        return cast("tuple[torch.Tensor, torch.Tensor]", (self.keys, self.values))


class GrowingCache(Cache):
    """A transformers cache with doubling buffers: a new token is written, old ones are not copied.

    transformers' DynamicCache copies all keys and values at every token, which with some thousand
    tokens is most of a layer's time. This cache copies only when a buffer is full, on average each
    token about once. Beam search, cropping (prompt lookup) and resetting work as in DynamicCache.

    Args:
        capacity: the number of tokens that the first buffers have room for, at least.

    Raises:
        TypeError, ValueError: capacity is no positive integer.

    Example:
        >>> import torch, transformers, ntk_alibi as na
        >>> config = transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4)
        >>> model = transformers.BloomForCausalLM(config).eval()
        >>> cache = na.GrowingCache(capacity=128)
        >>> tokens = model.generate(
        ...     torch.arange(12)[None], past_key_values=cache, max_new_tokens=4, do_sample=False
        ... )
        >>> cache.get_seq_length()
        15
    """

    def __init__(self, capacity: int = 256) -> None:
        least = _checks.integer("capacity", capacity, minimum=1)
        new_layer: Any = partial(GrowingLayer, least)
        super().__init__(layer_class_to_replicate=new_layer)

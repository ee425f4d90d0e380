"""A layer of a growing cache: buffers that double when they are full."""

from __future__ import annotations

from typing import Any, cast

import torch
from transformers.cache_utils import DynamicLayer

from ntk_alibi import _arrays
from ntk_alibi.fused.key_norms import KeyNorms
from ntk_alibi.integrations.cache_argument import CACHE


def recorded(*states: torch.Tensor) -> bool:
    """Return whether torch records gradients of keys or values."""
    return torch.is_grad_enabled() and _arrays.require_grad(*states)


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

    def append(
        self, key_states: torch.Tensor, value_states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append keys and values, and return all of them as they are held: what `update` does."""
        return self.update(key_states, value_states)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append keys and values, and return all of them.

        Raises:
            ValueError: they are of another batch, or of other heads, than those that are held.
        """
        if self.is_initialized and self.keys is not None and self.keys.ndim == 4:
            held, coming = tuple(self.keys.shape), tuple(key_states.shape)
            if held[:2] != coming[:2] or held[3] != coming[3]:
                raise ValueError(
                    f"{CACHE} holds tokens of (batch, heads) = {held[:2]}, got "
                    f"{coming[:2]}: take a new cache for other texts"
                )
        if recorded(key_states, value_states):
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
        return self._norms.update(self.held()[0])

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
                buffer[:, :, :length] = self.held()[i]
            buffers.append(buffer)
        self._buffers = (buffers[0], buffers[1])
        return self._buffers

    def _holds(self, buffers: tuple[torch.Tensor, torch.Tensor], total: int, length: int) -> bool:
        """Return whether the buffers have room, and begin with the tokens held now."""
        if buffers[0].shape[2] < total:
            return False
        return length == 0 or all(
            held.data_ptr() == buffer.data_ptr() and held.shape[0] == buffer.shape[0]
            for held, buffer in zip(self.held(), buffers, strict=True)
        )

    def held(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all keys and values."""
        return cast("tuple[torch.Tensor, torch.Tensor]", (self.keys, self.values))

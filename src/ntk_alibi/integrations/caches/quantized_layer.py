"""A layer of a growing cache that holds keys and values in eight bits a number."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

from ntk_alibi.fused.key_norms import KeyNorms
from ntk_alibi.fused.quantized_rows import QuantizedRows
from ntk_alibi.integrations.caches.growing_layer import GrowingLayer, recorded


class QuantizedLayer(DynamicLayer):
    """One layer's keys and values as `QuantizedRows`: a growing layer of numbers, one of scales.

    Every token is quantized when it comes, before any query sees it. Passes of all lengths then
    read the same numbers, and a text in pieces gives what it gives in one.

    Attributes:
        keys: (batch, heads, tokens, head_dim), dequantized at each access, for other readers.
        values: (batch, heads, tokens, head_dim), likewise.
    """

    def __init__(self, capacity: int) -> None:
        self._numbers, self._scales = GrowingLayer(capacity), GrowingLayer(capacity)
        self._norms = KeyNorms()
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def keys(self) -> torch.Tensor | None:
        """All keys, dequantized to the dtype of the last ones; None before the first ones."""
        return self._held(0).dequantized(self.dtype) if self.is_initialized else None

    @keys.setter
    def keys(self, value: Any) -> None:
        _refuse("keys", value)

    @property
    def values(self) -> torch.Tensor | None:
        """All values, dequantized to the dtype of the last ones; None before the first ones."""
        return self._held(1).dequantized(self.dtype) if self.is_initialized else None

    @values.setter
    def values(self, value: Any) -> None:
        _refuse("values", value)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Append no tokens, which sets dtype, device and shape."""
        self.append(key_states[:, :, :0], value_states[:, :, :0])

    def append(
        self, key_states: torch.Tensor, value_states: torch.Tensor
    ) -> tuple[QuantizedRows, QuantizedRows]:
        """Append keys and values, and return all of them as they are held.

        Raises:
            ValueError: torch records gradients of the keys or values.
        """
        if recorded(key_states, value_states):
            raise ValueError(
                "dtype must be None in a GrowingCache where torch records gradients of the keys, "
                "got 'int8', which holds numbers only: use torch.no_grad()"
            )
        self.dtype, self.device = key_states.dtype, key_states.device
        key, value = QuantizedRows.of(key_states), QuantizedRows.of(value_states)
        self._numbers.append(key.numbers, value.numbers)
        self._scales.append(key.scales[..., None], value.scales[..., None])
        self.is_initialized = True
        return self._held(0), self._held(1)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append keys and values, and return all of them dequantized to the dtype of the new ones.

        Raises:
            ValueError: torch records gradients of the keys or values.
        """
        key, value = self.append(key_states, value_states)
        return key.dequantized(self.dtype), value.dequantized(self.dtype)

    def norms(self) -> KeyNorms:
        """Return the norms of the keys as they are held."""
        return self._norms.update(self._held(0))

    def get_seq_length(self) -> int:
        """Return the number of tokens."""
        return int(self._numbers.get_seq_length())

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens; new tokens take their place."""
        self._of_both("crop", tokens_to_remove)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Reorder the rows of the batch by beam_idx."""
        self._of_both("reorder_cache", beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch."""
        self._of_both("batch_repeat_interleave", repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some rows of the batch."""
        self._of_both("batch_select_indices", indices)

    def reset(self) -> None:
        """Remove all tokens and the buffers."""
        self.is_initialized = False
        self._of_both("reset")

    def _of_both(self, method: str, *arguments: Any) -> None:
        """Call a method of the numbers and of the scales, after which the norms are new."""
        for layer in (self._numbers, self._scales):
            getattr(layer, method)(*arguments)
        self._norms = KeyNorms()

    def _held(self, which: int) -> QuantizedRows:
        """Return the keys, 0, or the values, 1."""
        return QuantizedRows(self._numbers.held()[which], self._scales.held()[which][..., 0])


def _refuse(name: str, value: object) -> None:
    """Refuse keys or values in the place of those that a quantized layer holds."""
    if value is not None:
        raise TypeError(
            f"{name} of a quantized layer must come by update, got {type(value).__name__}: only "
            "None may be assigned"
        )

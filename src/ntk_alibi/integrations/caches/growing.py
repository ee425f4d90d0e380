"""A key-value cache for long generation that does not copy all keys at every token."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal, cast

import torch
from transformers.cache_utils import Cache, DynamicLayer

from ntk_alibi import _checks
from ntk_alibi._torch_state import is_followed
from ntk_alibi.fused.key_norms import KeyNorms
from ntk_alibi.fused.quantized_rows import QuantizedRows
from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.integrations.caches import ReadAsHeld

Pair = tuple[torch.Tensor, torch.Tensor]


class GrowingCache(ReadAsHeld, Cache):
    """A transformers cache with doubling buffers: a new token is written, old ones are not copied.

    transformers' DynamicCache copies all keys and values at every token, which with some thousand
    tokens is most of a layer's time. This cache copies only when a buffer is full, on average each
    token about once. Beam search, cropping (prompt lookup) and resetting work as in DynamicCache.
    Models take it as `cache`, and before transformers 5.24 as `past_key_values`.

    With dtype="int8" it holds `QuantizedRows`, in 0.27 of the memory of float32 for a head_dim of
    64 (0.25 + 1 / head_dim). Each entry is off by at most 1 / 254 of the greatest of its token and
    head. Attention over the entries held is as exact as over others, and skips keys by their norms.
    Patched models with attention="fused" read them as they are. All others, stock models included,
    get copies of all keys and values in the model's dtype at each token, which are slower.

    Args:
        capacity: the number of tokens that the first buffers have room for, at least.
        dtype: "int8" to quantize keys and values, or None to hold them as the model computes them.

    Raises:
        TypeError, ValueError: capacity is no positive integer, or dtype neither None nor "int8";
            when tokens come, torch records gradients that dtype="int8" would lose.

    Example:
        >>> import torch, transformers, ntk_alibi as na
        >>> sizes = {"vocab_size": 64, "hidden_size": 32, "n_layer": 1, "n_head": 4}
        >>> config = transformers.BloomConfig(**sizes)
        >>> model = transformers.BloomForCausalLM(config).eval()
        >>> cache = na.GrowingCache(capacity=128)
        >>> tokens = model.generate(
        ...     torch.arange(12)[None], cache=cache, max_new_tokens=4, do_sample=False
        ... )
        >>> cache.get_seq_length()
        15
    """

    def __init__(self, capacity: int = 256, *, dtype: Literal["int8"] | None = None) -> None:
        least = _checks.integer("capacity", capacity, minimum=1)
        if dtype is not None and not (isinstance(dtype, str) and dtype == "int8"):
            raise ValueError(f"dtype must be None or 'int8', got {dtype!r}")
        new_layer: Any = partial(GrowingLayer if dtype is None else QuantizedLayer, least)
        super().__init__(layer_class_to_replicate=new_layer)

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {self.get_seq_length()} tokens"

    def append(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int
    ) -> tuple[Any, Any]:
        """Append keys and values of a layer, and return all of them as they are held.

        The result is two tensors, or two `QuantizedRows`; `update` always returns two tensors.
        """
        new_layer: Any = self.layer_class_to_replicate
        while len(self.layers) <= layer_idx:
            self.layers.append(new_layer())
        rows: tuple[Any, Any] = cast(Any, self.layers[layer_idx]).append(key_states, value_states)
        return rows

    def norms(self, layer_idx: int) -> KeyNorms:
        """Return the norms of the keys that a layer holds."""
        return cast(KeyNorms, cast(Any, self.layers[layer_idx]).norms())


class GrowingLayer(DynamicLayer):
    """One layer's keys and values as part of buffers, in which new tokens follow the old ones.

    Full buffers double, up to a greatest size.

    Args:
        capacity: the number of tokens that the first buffers have room for, at least.
        most: the greatest number of tokens in a buffer; a text of more tokens is in none.

    Attributes:
        keys: (batch, heads, tokens, head_dim), a view of its buffer.
        values: (batch, heads, tokens, head_dim), a view of its buffer.
    """

    def __init__(self, capacity: int, most: float = math.inf) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._capacity, self._most = capacity, most
        self._buffers: Pair | None = None
        # What else changes the tokens, such as a beam search, assigns other keys.
        self._own_keys: torch.Tensor | None = None
        self._begin = 0  # of these keys in the buffers
        self._norms = KeyNorms()

    def append(self, key_states: torch.Tensor, value_states: torch.Tensor) -> Pair:
        """Append keys and values, and return all of them as they are held: what `update` does."""
        return self.update(key_states, value_states)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> Pair:
        """Append keys and values, and return all of them.

        Raises:
            ValueError: they are of another batch, or of other heads, than those that are held.
        """
        self.keys, self.values = self.joined(key_states, value_states)
        return self.held()

    def joined(self, key_states: torch.Tensor, value_states: torch.Tensor) -> Pair:
        """Return the keys and values that are held, and new ones, which follow them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        elif self.keys is not None and self.keys.ndim == 4:
            held, coming = tuple(self.keys.shape), tuple(key_states.shape)
            if held[:2] != coming[:2] or held[3] != coming[3]:
                raise ValueError(
                    f"{CACHE} holds tokens of (batch, heads) = {held[:2]}, got "
                    f"{coming[:2]}: take a new cache for other texts"
                )
        count = self.count_held()
        total = count + key_states.shape[2]
        if self.keys is not self._own_keys or self._is_closed():
            self._buffers, self._norms = None, KeyNorms()
        if total > self._most or is_followed(key_states, value_states):
            self._buffers = None  # writing in place would break the graph
            keys, values = (
                torch.cat([old, new], dim=-2)
                for old, new in zip(self.held(), (key_states, value_states), strict=True)
            )
        else:
            if self._buffers is None or self._begin + total > self._buffers[0].shape[2]:
                self._make_room(count, total, (key_states, value_states))
            keys, values = (x[:, :, self._begin : self._begin + total] for x in self._buffers or ())
            keys[:, :, count:] = key_states
            values[:, :, count:] = value_states
        self._own_keys = keys
        return keys, values

    def _is_closed(self) -> bool:
        """Return whether torch refuses to write: the first tokens came in inference mode."""
        inference = self._buffers is not None and self._buffers[0].is_inference()
        return inference and not torch.is_inference_mode_enabled()

    def _make_room(self, count: int, total: int, new: Pair) -> None:
        """Move the tokens that are held to the beginning of the buffers, or of larger ones."""
        buffers = self._buffers
        if buffers is None or self._begin < count or total > buffers[0].shape[2]:
            room = int(min(max(self._capacity, 2 * total), self._most))
            # Unwritten pages take no memory yet.
            keys, values = (x.new_empty((*x.shape[:2], room, x.shape[3])) for x in new)
            buffers = keys, values
        for buffer, held in zip(buffers, self.held(), strict=True):
            if count:
                buffer[:, :, :count] = held
        self._buffers, self._begin = buffers, 0

    def norms(self, keys: Any = None) -> KeyNorms:
        """Return the norms of all keys held, by which `ntk_alibi.attention` skips keys.

        Args:
            keys: the keys in another form, for which the layer holds integers.
        """
        if self.keys is not self._own_keys:
            self._norms = KeyNorms()
        return self._norms.update(self.held()[0] if keys is None else keys)

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens; new tokens take their place."""
        in_place = self.keys is self._own_keys
        super().crop(tokens_to_remove)
        self._norms = KeyNorms()
        if in_place:
            self._own_keys = self.keys

    def reset(self) -> None:
        """Remove all tokens and the buffers."""
        self._buffers = self.keys = self.values = self._own_keys = None
        self.is_initialized = False  # older versions of transformers would fill with zeros instead
        self._norms = KeyNorms()
        super().reset()

    def held(self) -> Pair:
        """Return all keys and values."""
        return cast(Pair, (self.keys, self.values))

    def count_held(self) -> int:
        """Return the number of tokens held."""
        return int(DynamicLayer.get_seq_length(self))


class QuantizedLayer(DynamicLayer):
    """One layer's keys and values as `QuantizedRows`: a growing layer of integers, one of scales.

    Every token is quantized when it comes, before any query sees it. Passes of all lengths then
    read the same entries, and a text in pieces gives what it gives in one.

    Attributes:
        keys: (batch, heads, tokens, head_dim), dequantized at each access, for other readers.
        values: (batch, heads, tokens, head_dim), likewise.
    """

    def __init__(self, capacity: int) -> None:
        self._numbers, self._scales = GrowingLayer(capacity), GrowingLayer(capacity)
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
            ValueError: torch records, transforms or traces the keys or values.
        """
        if is_followed(key_states, value_states):
            raise ValueError(
                "dtype must be None in a GrowingCache where torch records, transforms or traces "
                "the keys, got 'int8', which holds integers only: use torch.no_grad()"
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
            ValueError: torch records, transforms or traces the keys or values.
        """
        key, value = self.append(key_states, value_states)
        return key.dequantized(self.dtype), value.dequantized(self.dtype)

    def norms(self) -> KeyNorms:
        """Return the norms of the keys as they are held."""
        return self._numbers.norms(self._held(0))

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
        for layer in (self._numbers, self._scales):
            getattr(layer, method)(*arguments)

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

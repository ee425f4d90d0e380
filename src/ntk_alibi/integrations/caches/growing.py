"""A key-value cache for long generation that does not copy all keys at every token."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, cast

import torch
from transformers.cache_utils import Cache

from ntk_alibi import _checks
from ntk_alibi.fused.key_norms import KeyNorms
from ntk_alibi.integrations.caches.growing_layer import GrowingLayer
from ntk_alibi.integrations.caches.quantized_layer import QuantizedLayer


class GrowingCache(Cache):
    """A transformers cache with doubling buffers: a new token is written, old ones are not copied.

    transformers' DynamicCache copies all keys and values at every token, which with some thousand
    tokens is most of a layer's time. This cache copies only when a buffer is full, on average each
    token about once. Beam search, cropping (prompt lookup) and resetting work as in DynamicCache.
    Models take it as `cache`, and before transformers 5.24 as `past_key_values`.

    With dtype="int8" it holds `QuantizedRows`, in 0.27 of the memory of float32 for a head_dim of
    64 (0.25 + 1 / head_dim). Each number is off by at most 1 / 254 of the greatest of its token and
    head. Attention over the numbers held is as exact as over others, and skips keys by their norms.
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
        >>> config = transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4)
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
        self._new_layer = new_layer

    def append(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int
    ) -> tuple[Any, Any]:
        """Append keys and values of a layer, and return all of them as they are held.

        The result is two tensors, or two `QuantizedRows`; that of `update` is always two tensors.
        """
        while len(self.layers) <= layer_idx:
            self.layers.append(self._new_layer())
        rows: tuple[Any, Any] = cast(Any, self.layers[layer_idx]).append(key_states, value_states)
        return rows

    def norms(self, layer_idx: int) -> KeyNorms:
        """Return the norms of the keys that a layer holds."""
        return cast(KeyNorms, cast(Any, self.layers[layer_idx]).norms())

"""Norms of the keys in a growing cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntk_alibi import _arrays, _checks, _core
from ntk_alibi._arrays import Array
from ntk_alibi._backends import backend_of, readable
from ntk_alibi._torch_state import has_values
from ntk_alibi.fused.quantized_rows import QuantizedRows, is_quantized

#: The number of keys that are skipped, or read, together.
BLOCK = _core.keys_per_block


class KeyNorms:
    """Norms of the keys in a growing cache, so that `attention` need not measure them every time.

    `skip_tolerance` needs the largest norm of every 64 keys, so it reads all keys first; with many
    keys and one query, that is most of the work. `update` reads only the keys that were appended
    since the last update. It does not notice keys that changed in place: make a new object then.

    Attributes:
        length: the number of measured keys.
        dtype: the dtype of these keys, such as "float32", or None before the first.
        centres: float32 (batch, key heads, head_dim), the mean of each head's first 256 keys, or of
            all keys while there are fewer. Norms are measured from the centre, because softmax does
            not change when all keys move by the same vector.
        norms: float32 (batch, key heads, blocks, 3), for `attention`: the largest norm in each
            block of 64 keys; in the block and all earlier blocks; and infinity.

    Raises:
        TypeError, ValueError: in `update` and `attention`, the keys do not match earlier keys.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> random = np.random.default_rng(0)
        >>> query, key, value = random.random((3, 1, 2, 100, 8), np.float32)
        >>> norms = na.KeyNorms()
        >>> for length in (99, 100):
        ...     cache = key[:, :, :length], value[:, :, :length]
        ...     output = na.attention(
        ...         query[:, :, length - 1 : length], *cache, na.ALiBi(2),
        ...         key_norms=norms.update(cache[0]),
        ...     )
        >>> norms.length
        100

    Source: this package (benchmarks/results/skipping.md).
    """

    def __repr__(self) -> str:
        return f"KeyNorms(length={self.length}, dtype={self.dtype!r})"

    def __init__(self) -> None:
        self.length = 0
        self.dtype: str | None = None
        self.centres = np.empty((0, 0, 0), np.float32)  # (batch, key heads, head_dim)
        self.norms = np.empty((0, 0, 0, 3), np.float32)  # (batch, key heads, blocks, kinds)

    def update(self, key: Array | QuantizedRows) -> KeyNorms:
        """Measure the keys that were appended since the last update, and return this object.

        Args:
            key: (batch, key heads, keys, head_dim), the whole cache, at least as long as before.

        Raises:
            TypeError: key is not an array, a tensor or `QuantizedRows`, or has a wrong dtype, or
                another one than before.
            ValueError: key does not have four axes, is shorter than before, or has another batch,
                number of heads or head_dim.
        """
        rows: Any = key
        scales = None
        if is_quantized(rows):
            rows, scales = rows.numbers, rows.scales
        else:
            _checks.attention_input("key", rows)
            _checks.floating_dtype(rows.dtype, _arrays.CORE_DTYPES, "key")
        if not has_values(key):
            raise ValueError("key must have values, got a tensor that torch traces or transforms")
        batch, heads, length, head_dim = key.shape
        dtype = _arrays.dtype_name(rows.dtype)
        if self.length and dtype != self.dtype:
            raise TypeError(f"key must be of {self.dtype} as before, got {dtype}")
        before = self.centres.shape
        if self.length and (batch, heads) != before[:2]:
            got = key.shape[:2]
            raise ValueError(f"key must have (batch, heads) {before[:2]} as before, got {got}")
        if self.length and head_dim != before[2]:
            raise ValueError(f"key must have head_dim {before[2]} as before, got {head_dim}")
        if length < self.length:
            raise ValueError(f"key must have at least {self.length} keys as before, got {length}")
        _checks.head_dim(head_dim)
        blocks = -(-length // BLOCK)
        if self.norms.shape[:2] != (batch, heads) or blocks > self.norms.shape[2]:
            grown = np.empty((batch, heads, max(blocks, 2 * self.norms.shape[2]), 3), np.float32)
            if self.length:
                grown[:, :, : self.norms.shape[2]] = self.norms
            self.norms = grown
        if self.centres.shape != (batch, heads, head_dim):
            self.centres = np.empty((batch, heads, head_dim), np.float32)
        memory = backend_of(rows).storage(rows)
        scales = None if scales is None else readable(scales)
        _core.measure_key_norms(memory, self.length, self.norms, self.centres, scales)
        self.length, self.dtype = length, dtype
        return self

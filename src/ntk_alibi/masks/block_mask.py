"""A mask of one's own: a boolean for each pair of a query and a key, which follows no rule."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ntk_alibi import _arrays, _checks, _core
from ntk_alibi._backends import backend_of
from ntk_alibi._torch_state import has_values, is_transformed
from ntk_alibi.masks.cut import Cut

#: The number of queries and of keys in a block of the pictures and of `block_states`.
KEYS_PER_BLOCK: int = _core.keys_per_block


class BlockMask:
    """A mask of pairs that calls share, so that it is read only once.

    Formula::

        query i sees key j  only if  mask[b, h, i, j]

    `attention` takes it as mask, in place of the array. The first call reads the array once and
    keeps a bit for each pair and what it found about each block of keys: blocks without a visible
    pair are then skipped. It suits every call with as many queries and keys, in any layer.

    The array is not copied, and must not change while the `BlockMask` is in use. Changes by torch's
    operations, `mask.data = other` and `torch.utils.swap_tensors` are seen; after others, later
    calls may follow the old values or the new ones. Make a new `BlockMask` of an array that has
    changed.

    Attributes:
        mask: the array or tensor.
        shape: its shape.

    Args:
        mask: (batch or 1, heads or 1, queries, keys), boolean, True where a query may see a key;
            an array, or a tensor on the device of the call. Views with any strides are read where
            they are; an axis with a stride of 0, as expand makes it, is read once.

    Raises:
        TypeError: mask is not a boolean array or tensor.
        ValueError: it does not have four axes.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> prefix = 2  # the first tokens see each other both ways
        >>> mask = na.BlockMask((np.tri(5) > 0) | (np.arange(5) < prefix)[None, None, None])
        >>> query, key, value = np.ones((3, 1, 8, 5, 16), np.float32)
        >>> na.attention(query, key, value, causal=False, mask=mask).shape
        (1, 8, 5, 16)

    Source: FlexAttention's BlockMask (Dong et al. 2024, arXiv 2412.05496) for the name and the
    blocks.
    """

    def __init__(self, mask: Any) -> None:
        _checks.check_plain("mask", mask)
        _checks.check_no_block_mask("mask", mask)
        if not _arrays.is_array(mask):
            raise TypeError(
                "mask must be None, a BlockMask or a boolean array or tensor, got "
                f"{_checks.briefly(mask)}"
            )
        if mask.ndim != 4:
            advice = (
                ": pass padding as key_padding_mask, and pairs (queries, keys) as mask[None, None]"
            )
            raise ValueError(
                "mask must have shape (batch or 1, heads or 1, queries, keys), got "
                f"{tuple(mask.shape)}{advice if mask.ndim == 2 else ''}"
            )
        dtype = _arrays.dtype_name(mask.dtype)
        if dtype != "bool":
            floating = dtype.startswith(("float", "bfloat"))
            advice = "pass an array to add as bias" if floating else "pass mask != 0"
            raise TypeError(
                f"mask must be boolean, True where a query may see a key, got {dtype}: {advice}"
            )
        self.mask = mask
        self._bits: tuple[Any, _core.BlockMask, Any] | None = None
        self._operand: Any = None

    @classmethod
    def of_operand(cls, operand: Any) -> BlockMask:
        """Return the mask with this very operand if it is alive, or a new one of its values."""
        known = _ALIVE.get(id(operand))
        return known if known is not None and known._operand is operand else cls(operand)

    def __repr__(self) -> str:
        return f"BlockMask(shape={self.shape})"

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockMask, (self.mask,)

    @property
    def operand(self) -> Any:
        """What torch's operator gets: of a tensor with values a view that no other mask has."""
        mask = self.mask
        if not _arrays.is_tensor(mask) or not has_values(mask) or is_transformed(maps=True):
            return mask
        if self._operand is None or self._operand.data_ptr() != mask.data_ptr():
            self._operand = mask.detach()
            _ALIVE[id(self._operand)] = self
        return self._operand

    @property
    def shape(self) -> tuple[int, ...]:
        """(batch or 1, heads or 1, queries, keys)."""
        return tuple(self.mask.shape)

    def in_core(self) -> _core.BlockMask:
        """Return the mask as the core's object, made again only if torch may have changed the mask.

        Tensors of inference mode do not tell of changes.
        """
        tensor = _arrays.is_tensor(self.mask)
        if tensor and self.mask.is_inference():
            return _core.BlockMask(_arrays.to_numpy(self.mask))
        state = (self.mask._version, self.mask.data_ptr(), self.mask.stride()) if tensor else None
        if self._bits is None or self._bits[0] != state:
            # The view keeps the memory, which no other tensor then gets.
            kept = self.mask.detach() if tensor else None
            self._bits = state, _core.BlockMask(_arrays.to_numpy(self.mask)), kept
        return self._bits[1]

    def like(self, like: Any) -> Any:
        """Return the array in like's framework and on its device; NumPy if like is None."""
        return backend_of(like).convert(self.mask, "bool")

    def cut(self, cut: Cut) -> BlockMask:
        """Return the mask of a part."""
        part = cut.of(self.mask, "BHqk")
        return self if part is self.mask else BlockMask(part)


#: The masks of tensors by the identity of their operands, which they keep.
_ALIVE: WeakValueDictionary[int, BlockMask] = WeakValueDictionary()


def checked_block_mask(mask: Any, shape: tuple[int, ...], query: Any) -> BlockMask:
    """Check the argument mask of `attention` against (batch, heads, queries, keys).

    Raises:
        TypeError, ValueError: it is of another kind, framework, device or shape.
    """
    checked = mask if isinstance(mask, BlockMask) else BlockMask(mask)
    given, backend = checked.mask, backend_of(query)
    if not backend.holds(given):
        raise TypeError(f"mask must be a {backend.kind} as query, got {type(given).__name__}")
    if getattr(given, "device", None) != getattr(query, "device", None):
        raise ValueError(f"mask must be on query's device {query.device}, got {given.device}")
    batch, heads, queries, keys = shape
    shapes = ((b, h, queries, keys) for b in (1, batch) for h in (1, heads))
    if not _arrays.has_shape(checked, *shapes):
        raise ValueError(
            "mask must have shape (batch or 1, heads or 1, queries, keys) = "
            f"({batch} or 1, {heads} or 1, {queries}, {keys}), got {checked.shape}"
        )
    return checked


def block_states(mask: Any, block: int = KEYS_PER_BLOCK) -> Any:
    """Return how much each block of a mask (..., queries, keys) shows, int8 (..., rows, columns).

    2 where all of its pairs are visible, 1 where some are, 0 where none is.
    """
    some, every = mask, mask
    for axis in (-1, -2):
        begins = np.arange(0, mask.shape[axis], block)
        some = np.logical_or.reduceat(some, begins, axis=axis)
        every = np.logical_and.reduceat(every, begins, axis=axis)
    return some.astype(np.int8) + every.astype(np.int8)

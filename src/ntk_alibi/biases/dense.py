"""Dense bias tensors, computed by the compiled core."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks, _core, masks
from ntk_alibi._arrays import Array, ArrayT, DTypeLike
from ntk_alibi._backends import Backend, backend_of
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.masks import Problem
from ntk_alibi.methods import as_scaling
from ntk_alibi.scaling import AnyScaling, is_dynamic


def build_alibi_tensor(
    attention_mask: ArrayT,
    num_heads: int,
    dtype: DTypeLike,
    scaling: AnyScaling | None = None,
    *,
    anchor: Literal["first", "last"] = "first",
    out: ArrayT | None = None,
) -> ArrayT:
    """Return the ALiBi bias of BLOOM and Falcon, like transformers' function of this name.

    Formula::

        out[b H + h, 0, k] = m_h (p_k - p_0)

    p_k counts the real tokens of row b before key k; padding gets 0. The bias depends on the key
    only: softmax ignores a constant per query, so with a causal mask it equals -m_h (i - k). With
    anchor="first", p_0 = 0 as in transformers: the newest token has the largest value, which
    bfloat16 and float16 round most. With anchor="last", p_0 is the newest token's position: near
    tokens are exact, and far tokens may round to the same value.

    Args:
        attention_mask: (batch, keys) of 0 and 1, any dtype; padding may be anywhere.
        num_heads: H >= 1.
        dtype: NumPy's or torch's float32, bfloat16, float16, or float64 (with float32 values).
        scaling: as of `ALiBi`; a dynamic scaling counts the real tokens of each row.
        anchor: "first" or "last".
        out: a buffer with the result's framework, shape and dtype, which is filled and returned.

    Returns:
        The bias, (batch * heads, 1, keys), of dtype: a NumPy array for a NumPy mask, a tensor on
        the mask's device for a tensor (computed in main memory, then copied). Products are
        float32, rounded to nearest even.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument is out of range.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> na.build_alibi_tensor(np.array([[0, 1, 1, 1]]), 1, np.float32)
        array([[[0.        , 0.        , 0.00390625, 0.0078125 ]]], dtype=float32)

    Source: Press et al. 2022; transformers' modeling_bloom.py for the key-only form.
    """
    mask = masks.checked_attention_mask(attention_mask)
    heads = _checks.num_heads(num_heads)
    name = _checks.floating_dtype(dtype, (*_arrays.CORE_DTYPES, "float64"))
    chosen = as_scaling(scaling)
    _checks.choice("anchor", anchor, ("first", "last"))
    batch, key_length = mask.shape
    lengths = mask.sum(axis=1, dtype=np.int64) if is_dynamic(chosen) else None
    slopes = ModelSlopes(heads).slopes(chosen, lengths)
    write = partial(_core.key_bias, mask, slopes, getattr(_core.Anchor, anchor))
    shape = (batch * heads, 1, key_length)
    backend = backend_of(attention_mask)
    return cast("ArrayT", backend.convert(_filled(write, shape, name, out, backend)))


def dense_bias(
    bias: KernelBias, problem: Problem, dtype: str, out: Array | None, backend: Backend
) -> Array:
    """Return a kernel bias as an array for all pairs, (1 or batch, heads, queries, keys).

    Under a causal mask keys ahead of the query get -inf.
    """
    if bias.left is not None and not bias.exempt:
        shape = (max(bias.left.shape[0], bias.right.shape[0]), *problem.shape[1:])
        hidden = np.full((1, 1, 1), np.inf, np.float32)
        write = partial(
            _core.relative_bias, bias.left, hidden if problem.mask.causal else bias.right
        )
        return _filled(write, shape, dtype, out, backend)
    positions = problem.positions()
    finite, hidden = bias.values(*positions)
    if problem.mask.causal:
        hidden = hidden | ~problem.mask.visible(*positions)[:, None]
    values = _checks.as_float32("bias", np.where(hidden, -np.inf, finite))
    values = np.array(np.broadcast_to(values, (len(values), *problem.shape[1:])), order="C")
    result: Any = backend.on_memory(values, "float32")
    if out is None:
        return cast("Array", backend.cast(result, dtype))
    _checks.out(out, values.shape, dtype, backend)
    out[...] = result
    return out


def _filled(
    write: Callable[[_core.DType, NDArray[Any]], None],
    shape: tuple[int, ...],
    dtype: str,
    out: Array | None,
    backend: Backend,
) -> Array:
    """Return the caller's buffer or a new array, filled by write(dtype, memory).

    A float64 result has float32 values.
    """
    if out is not None:
        _checks.out(out, shape, dtype, backend)
    core_dtype = "float32" if dtype == "float64" else dtype
    if out is not None and dtype == core_dtype:
        write(_arrays.CORE_DTYPES[dtype], backend.storage(out))
        return out
    memory = np.empty(shape, "int16" if core_dtype == "bfloat16" else core_dtype)
    write(_arrays.CORE_DTYPES[core_dtype], memory)
    result: Any = backend.cast(backend.on_memory(memory, core_dtype), dtype)
    if out is None:
        return cast("Array", result)
    out[...] = result
    return out

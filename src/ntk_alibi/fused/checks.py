"""Checks of the arguments of `attention` and of its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntk_alibi import _arrays, _checks


def rotary(value: Any, head_dim: int, *, causal: bool) -> Any:
    """None or rotary positions for heads of this size."""
    if value is None:
        return None
    if isinstance(value, type) or not callable(getattr(value, "turned", None)):
        raise TypeError(f"rotary must be None, a RoPE or an XPOS, got {value!r}")
    if value.head_dim != head_dim:
        raise ValueError(f"rotary must have query's head_dim {head_dim}, got {value!r}")
    if hasattr(value, "log_decays") and not causal:
        raise ValueError(f"causal must be True with XPOS, which grows ahead, got {value!r}")
    return value


def untraced_positions(options: Any) -> None:
    """That XPOS can see the positions it is given, which decide about its centres."""
    given = options.query_positions is not None or options.key_positions is not None
    if given and hasattr(options.rotary, "log_decays"):
        raise ValueError(
            "query_positions and key_positions must be None with XPOS where torch traces "
            f"attention, got them with {options.rotary!r}"
        )


def no_dropout(value: Any) -> None:
    """That no attention weights are to be dropped, which are never all formed."""
    if _checks.finite("dropout", value, minimum=0.0):
        raise ValueError(
            f"dropout must be 0 in fused attention, got {value!r}: use ntk_alibi.patch(model, "
            'attention="eager"), or bias.tensor(...) as attn_mask of torch\'s '
            "scaled_dot_product_attention(dropout_p=...)"
        )


def without_torch(name: str, given: bool) -> None:
    """That an option of the plain call is not given where torch records or transforms it."""
    if given:
        raise ValueError(
            f"{name} is for calls that torch neither records nor traces: use torch.no_grad() and "
            "float32, bfloat16 or float16 on the CPU"
        )


def forward_results(
    query: Any, output: Any, logsumexp: Any, output_gradient: Any, logsumexp_gradient: Any
) -> None:
    """Results of attention, and gradients of them."""
    for name, array, like in (
        ("output", output, query),
        ("output_gradient", output_gradient, query),
        ("logsumexp", logsumexp, None),
        ("logsumexp_gradient", logsumexp_gradient, None),
    ):
        if array is None and name == "logsumexp_gradient":
            continue
        shape = tuple(query.shape) if like is not None else tuple(query.shape[:3])
        if tuple(array.shape) != shape:
            raise ValueError(f"{name} must have shape {shape}, got {tuple(array.shape)}")
        if like is not None and array.dtype != query.dtype:
            raise TypeError(f"{name} must be of query's dtype {query.dtype}, got {array.dtype}")


def key_cache(key: Any, known: tuple[int, ...], length: int) -> str:
    """A key cache that goes on from `length` keys of (batch, key heads) = known; its dtype."""
    _checks._attention_input("key", key)
    if length and tuple(key.shape[:2]) != known:
        raise ValueError(f"key must have (batch, heads) {known} as before, got {key.shape[:2]}")
    if key.shape[2] < length:
        raise ValueError(f"key must have at least {length} keys as before, got {key.shape[2]}")
    _checks.integer("head_dim", key.shape[3], minimum=1, maximum=_checks.MAX_HEAD_DIM)
    return _checks.floating_dtype(key.dtype, _arrays.CORE_DTYPES)


def key_norms(value: Any, key_shape: tuple[int, ...], *, consecutive: bool) -> None:
    """Kept norms of consecutive keys of this shape."""
    if not hasattr(value, "_norms"):
        raise TypeError(f"key_norms must be None or a KeyNorms, got {value!r}")
    if not consecutive:
        raise ValueError("key_norms must be None with key_padding_mask or key_positions")
    got = (*value._norms.shape[:2], value.length)
    if got != tuple(key_shape[:3]):
        raise ValueError(
            f"key_norms must be of key's (batch, heads, keys) {tuple(key_shape[:3])}, got {got}"
        )


def skip_tolerance(value: Any) -> float | None:
    """None or a share in [0, 1)."""
    if value is None:
        return None
    share = _checks.finite("skip_tolerance", value, minimum=0.0)
    if share >= 1.0:
        raise ValueError(f"skip_tolerance must be below 1, got {value!r}")
    return share


def attention_bias(bias: Any, shape: tuple[int, ...], *, causal: bool) -> None:
    """None, a bias object of as many heads, or numbers broadcastable to shape."""
    if hasattr(bias, "num_heads"):
        if bias.num_heads != shape[1]:
            raise ValueError(f"bias must have query's {shape[1]} heads, got {bias!r}")
        if bias.sides == "causal" and not causal:
            raise ValueError(f"causal must be True for a bias of causal sides, got {bias!r}")
    elif bias is not None:
        _dense_bias(bias, shape)


def _dense_bias(bias: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(bias, np.ndarray) and not _arrays.is_tensor(bias):
        raise TypeError(f"bias must be None, a bias object, an array or a tensor, got {bias!r}")
    if _arrays.dtype_name(bias.dtype) not in (*_arrays.CORE_DTYPES, "float64"):
        raise TypeError(f"bias must be floating, got dtype {bias.dtype}")
    axes = zip(reversed(bias.shape), reversed(shape), strict=False)
    if len(bias.shape) > 4 or any(own not in (1, whole) for own, whole in axes):
        raise ValueError(f"bias must be broadcastable to {shape}, got {tuple(bias.shape)}")


def parts(outputs: Any, logsumexps: Any) -> None:
    """Results of attention over disjoint keys."""
    if len(outputs) != len(logsumexps) or not outputs:
        raise ValueError(
            "outputs and logsumexps must be as many, at least one, got "
            f"{len(outputs)} and {len(logsumexps)}"
        )
    for name, arrays, shape in (
        ("outputs", outputs, tuple(outputs[0].shape)),
        ("logsumexps", logsumexps, tuple(outputs[0].shape)[:-1]),
    ):
        for array in arrays:
            if tuple(array.shape) != shape:
                raise ValueError(f"{name} must have shape {shape}, got {tuple(array.shape)}")
            if _arrays.is_tensor(array) != _arrays.is_tensor(outputs[0]):
                raise TypeError(
                    f"{name} must all be arrays or all be tensors, got {type(array).__name__} and "
                    f"{type(outputs[0]).__name__}"
                )

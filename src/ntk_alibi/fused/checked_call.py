"""The boundary of `na.attention`: arguments are converted and checked once, in one function."""

from __future__ import annotations

import functools
from typing import Any

from ntk_alibi import _arrays, _checks, _core
from ntk_alibi.biases.base import kernel_bias_of
from ntk_alibi.fused.call import AttentionCall, core_rule
from ntk_alibi.fused.dropout import NO_DROPOUT, checked_dropout
from ntk_alibi.fused.quantized_rows import is_quantized
from ntk_alibi.masks import AT_END, Mask, Problem
from ntk_alibi.positions.log_n import log_n_of


def checked_call(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    scale: Any,
    skip_tolerance: Any,
    mask: tuple[Any, ...],
    *,
    key_padding_mask: Any = None,
    query_positions: Any = None,
    key_positions: Any = None,
    align: str = AT_END,
    segment_ids: Any = None,
    query_segment_ids: Any = None,
    rotary: Any = None,
    log_n: Any = None,
    initial: Any = None,
    key_norms: Any = None,
    dropout: Any = NO_DROPOUT,
    seed: Any = None,
    torch: bool = False,
) -> AttentionCall:
    """Convert and check the arguments of `attention`.

    Args:
        query: the queries.
        key: the keys.
        value: the values.
        bias: an object, dense numbers or None.
        scale: factor of the dot products, or None.
        skip_tolerance: the argument of `attention`.
        mask: the mask options, in the order of `Mask`.
        key_padding_mask: this and the other keywords are those of `attention`.
        query_positions: positions, or None.
        key_positions: positions, or None.
        align: "end" or "start".
        segment_ids: numbers of texts, or None.
        query_segment_ids: numbers of texts, or None.
        rotary: an embedding, or None.
        log_n: an argument of `attention`.
        initial: an output and a logsumexp, or None.
        key_norms: a `KeyNorms`, or None.
        dropout: the share of weights to drop.
        seed: the seed of dropout, or None.
        torch: whether torch's operator computes: the bias becomes tensors that autograd follows,
            inputs get the dtype that autocast wants, and float64 is allowed.

    Raises:
        TypeError, ValueError: an argument is wrong, or two of them contradict each other.
    """
    # Query, key and value. Memory of plain arrays shows that they are alike.
    given, like = query, None
    memory = None if torch else _arrays.memories(query, key, value)
    if memory is None:
        if is_quantized(key) or is_quantized(value):
            _checks.attention_input("query", query)
            for name, rows in (("key", key), ("value", value)):
                if not is_quantized(rows):
                    raise TypeError(
                        "key and value must both be QuantizedRows or both be arrays, got a "
                        f"{name} of type {type(rows).__name__}"
                    )
                if _arrays.is_tensor(rows.numbers) != _arrays.is_tensor(query):
                    raise TypeError(
                        f"{name} must be of query's framework, got {type(rows.numbers)}"
                    )
                if getattr(rows.numbers, "device", None) != getattr(query, "device", None):
                    raise ValueError(
                        f"{name} must be on query's {query.device}, got {rows.numbers.device}"
                    )
        else:
            _checks.attention_inputs(query, key, value)
        _checks.no_tangents(query=query, key=key, value=value)
    if torch:
        query, key, value = _arrays.in_autocast_dtype(query, key, value)
        like = query

    # Shapes and plain numbers: most calls repeat those of an earlier call, of another layer.
    shapes = query.dtype, query.shape, key.shape, value.shape
    numbers = *shapes, torch, scale, skip_tolerance, *mask
    try:
        checked = None if torch else _known_numbers(*numbers)
    except TypeError:  # a wrong type, or a type without a hash
        checked = None
    problem, scale, skip_tolerance, rule = checked or _numbers_of(*numbers)

    # Padding and positions, and what reads them.
    if rotary is not None:
        if isinstance(rotary, type) or not callable(getattr(rotary, "rotated", None)):
            raise TypeError(f"rotary must be None, a RoPE or an XPOS, got {rotary!r}")
        if rotary.head_dim != query.shape[3]:
            raise ValueError(f"rotary must have query's head_dim {query.shape[3]}, got {rotary!r}")
        if rotary.fades and problem.mask.sees_ahead:
            raise ValueError(f"causal must be True with XPOS, which grows ahead, got {rotary!r}")
    columns = key_padding_mask is query_positions is key_positions is None
    packed = not (segment_ids is query_segment_ids is None)
    if not columns or packed or align is not AT_END:
        problem = Problem.checked(
            problem.shape,
            problem.mask,
            key_padding_mask,
            query_positions,
            key_positions,
            align=align,
            like=like,
            segment_ids=segment_ids,
            query_segment_ids=query_segment_ids,
        )
    kernel = kernel_bias_of(bias, problem, like)
    factors = None
    if log_n is not None:
        log_n = log_n_of(log_n)
        factors = log_n.factors(problem, like)
        if torch:
            factors = _arrays.as_tensor(factors, like, _arrays.wide_dtype(like))
        else:
            factors = _arrays.to_float32(factors)
        kernel = kernel.times(factors) if log_n.biased else kernel

    # Results over other keys.
    known = None
    if initial is not None:
        if not isinstance(initial, tuple) or len(initial) != 2:
            raise TypeError(f"initial must be a pair (output, logsumexp), got {initial!r}")
        names = "the output of initial", "the logsumexp of initial"
        for name, array, shape in zip(names, initial, (query.shape, query.shape[:3]), strict=True):
            if _arrays.is_tensor(array) != _arrays.is_tensor(query) or not _arrays.is_array(array):
                raise TypeError(f"{name} must be of query's framework, got {type(array).__name__}")
            _checks.plain(name, array)
            _checks.no_tangents(**{name: array})
            if tuple(array.shape) != tuple(shape):
                raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(array.shape)}")
        if initial[0].dtype != given.dtype:
            raise TypeError(f"{names[0]} must be of query's {given.dtype}, got {initial[0].dtype}")
        _checks.floating_dtype(initial[1].dtype, ("float32", "float64"), names[1])
        known = _arrays.float64(initial[1], query)

    # Norms of the keys, which have to be consecutive.
    norms = None
    if key_norms is not None:
        if not hasattr(key_norms, "norms"):
            raise TypeError(f"key_norms must be None or a KeyNorms, got {key_norms!r}")
        _checks.at_most_one(segment_ids=segment_ids, key_norms=key_norms)
        _checks.at_most_one(rotary=rotary, key_norms=key_norms)
        consecutive = problem.key_padding_mask is problem.key_positions is None
        if not consecutive or kernel.exempt:
            raise ValueError("key_norms must be None with key_padding_mask or key_positions")
        key_shape = tuple(key.shape)
        got = (*key_norms.norms.shape[:2], key_norms.length, key_norms.centres.shape[2])
        if got[:3] != key_shape[:3]:
            raise ValueError(
                f"key_norms must be of key's (batch, heads, keys) {key_shape[:3]}, got {got[:3]}"
            )
        if got[3] != key_shape[3]:
            raise ValueError(f"key_norms must be of key's head_dim {key_shape[3]}, got {got[3]}")
        norms = key_norms.norms, key_norms.centres

    dropped = None
    if dropout is not NO_DROPOUT or seed is not None:
        dropped = checked_dropout(dropout, seed, query, key.shape[2])
    return AttentionCall(
        query, key, value, kernel, problem, rule, scale, skip_tolerance,
        rotary, factors, known, memory, norms, dropped,
    )  # fmt: skip


def _numbers_of(
    dtype: Any,
    query_shape: tuple[int, ...],
    key_shape: tuple[int, ...],
    value_shape: tuple[int, ...],
    torch: bool,
    scale: Any,
    skip_tolerance: Any,
    *mask: Any,
) -> tuple[Problem, float, float | None, _core.CallRule | None]:
    """Check the part of a call that depends on shapes and plain numbers alone.

    Returns:
        The problem with real keys only, and columns as positions; the factor of dot products; the
        tolerance; and these numbers as the core takes them, None if torch's operator computes.
    """
    allowed = _arrays.ANY_DTYPES if torch else _arrays.FUSED_DTYPES
    if not torch and _arrays.dtype_name(dtype) == "float64":
        raise TypeError(
            f"query must be of a dtype of {', '.join(allowed)}, got float64: pass "
            "query.astype(numpy.float32), or see ntk_alibi.reference.attention"
        )
    _checks.floating_dtype(dtype, allowed, "query")
    _checks.fitting_shapes(query_shape, key_shape, value_shape)
    checked_mask = Mask.checked(*mask)
    scale = _checks.scale(scale, query_shape[3])
    if skip_tolerance is not None:
        share = _checks.finite("skip_tolerance", skip_tolerance, minimum=0.0)
        if share >= 1.0:
            raise ValueError(f"skip_tolerance must be below 1, got {skip_tolerance!r}")
        skip_tolerance = share
    problem = Problem((*query_shape[:3], key_shape[2]), checked_mask)
    rule = None if torch else core_rule(checked_mask, scale, skip_tolerance)
    return problem, scale, skip_tolerance, rule


_known_numbers = functools.lru_cache(maxsize=256, typed=True)(_numbers_of)

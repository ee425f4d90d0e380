"""Program that passes wrong arguments to all functions of `_core`, which must not end it.

Each call is right but for one argument; it is taken, or refused with a TypeError or a ValueError.
The last line on stdout is the call that was made last.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from ntk_alibi import _core

F, D, I32 = np.float32, np.float64, np.int32
B, H, HK, Q, K, C = 2, 4, 2, 3, 70, 8

query, output = np.ones((B, H, Q, C), F), np.ones((B, H, Q, C), F)
key, per_query = np.ones((B, HK, K, C), F), np.ones((B, H, Q), D)
floats, norms = np.ones((B, H, Q), F), np.ones((B, HK, 2, 3), F)
side, centres = np.ones((1, H, 1), F), np.ones((B, HK, C), F)
rows, scales = np.ones((B, HK, K, C), np.int8), np.ones((B, HK, K), F)
slopes = np.ones((B, H, Q), F)
segments = np.array([[0, 2, 0, 3, 0, 70]])
rule = _core.CallRule(0.5, 0.0, [1, 2**31, 0, 0])
none = _core.no_bias()
dropout = _core.Dropout(7, 1, 0, 0, 0, 0)
press, float32 = _core.SlopeRule.press, _core.DType.float32


def tokens(*changes: Any) -> Any:
    given: list[Any] = [
        np.zeros((B, Q), I32),
        np.zeros((B, K), I32),
        np.ones((B, K), np.uint8),
        slopes,
    ]
    given += [_core.BlockMask(np.ones((1, 1, Q, K), bool)), None]
    for i, value in changes:
        given[i] = value
    return _core.Tokens(*given)


def attend(bias: Any = none, tokens: Any = None, **others: Any) -> None:
    given = {"query": query, "key": key, "value": key, "output": output.copy(), **others}
    _core.attention(bias=bias, rule=rule, tokens=tokens, **given)


def differentiate(bias: Any = none, tokens: Any = None, **others: Any) -> None:
    given: dict[str, Any] = {
        "query": query, "key": key, "value": key, "output": output, "logsumexp": per_query,
        "output_gradient": output, "logsumexp_gradient": floats, "query_gradient": output.copy(),
        "key_gradient": key.copy(), "value_gradient": key.copy(), "of_bias": _core.BiasGradients(),
        "dropout": dropout, **others,
    }  # fmt: skip
    _core.attention_gradients(bias=bias, rule=rule, tokens=tokens, **given)


def in_gradients(**given: Any) -> None:
    table = _core.table_bias(np.ones((H, 2 * K), F), -K)
    differentiate(table if "table" in given else none, of_bias=_core.BiasGradients(**given))


def in_tokens(place: int) -> Any:
    def call(array: Any) -> None:
        for compute in (attend, differentiate):
            compute(tokens=tokens((place, array)))

    return call


#: By name, a function of one argument, and the right one.
CALLS: dict[str, tuple[Any, Any]] = {
    **{
        f"attention({name})": (lambda x, name=name: attend(**{name: x}), right)
        for name, right in {
            "query": query, "key": key, "value": key, "output": output, "bias": none,
            "logsumexp": per_query, "block_counts": np.zeros((B, H, 3), np.int64),
            "key_norms": (norms, centres), "known_logsumexps": per_query, "dropout": dropout,
        }.items()
    },
    "attention(rows)": (
        lambda x: attend(key=x, value=x, scales=_core.KeyScales(scales, scales)), rows,
    ),
    "attention(scales)": (
        lambda x: attend(key=rows, value=rows, scales=_core.KeyScales(x, scales)), scales,
    ),
    "attention(norms)": (lambda x: attend(key_norms=(x, centres)), norms),
    "attention(centres)": (lambda x: attend(key_norms=(norms, x)), centres),
    **{
        f"attention_gradients({name})": (lambda x, name=name: differentiate(**{name: x}), right)
        for name, right in {
            "query": query, "key": key, "value": key, "output": output, "logsumexp": per_query,
            "output_gradient": output, "logsumexp_gradient": floats, "query_gradient": output,
            "key_gradient": key, "value_gradient": key, "of_bias": _core.BiasGradients(),
        }.items()
    },
    **{
        f"BiasGradients({name})": (lambda x, name=name: in_gradients(**{name: x}), right)
        for name, right in {
            "left": floats, "right": floats, "far_left": floats, "far_right": floats,
            "table": np.zeros((H, 2 * K), D), "sums": np.zeros((B, H, K), D),
            "dense": np.zeros((B, H, Q, K), F),
        }.items()
    },
    **{
        f"Tokens({name})": (in_tokens(place), right)
        for place, (name, right) in enumerate({
            "query_positions": np.zeros((B, Q), I32), "key_positions": np.zeros((B, K), I32),
            "key_mask": np.ones((B, K), np.uint8), "factors": slopes,
            "pairs": _core.BlockMask(np.ones((1, 1, Q, K), bool)), "segments": segments,
        }.items())
    },
    "BlockMask": (
        lambda x: attend(tokens=_core.Tokens(None, None, None, None, _core.BlockMask(x))),
        np.ones((1, H, Q, K), bool),
    ),
    "linear_bias(left)": (lambda x: attend(_core.linear_bias(x, side)), slopes),
    "linear_bias(right)": (lambda x: attend(_core.linear_bias(side, x)), slopes),
    "knee_bias(left)": (lambda x: attend(_core.knee_bias(x, side, side, side, 3)), slopes),
    "knee_bias(far_right)": (lambda x: attend(_core.knee_bias(side, side, side, x, 3)), slopes),
    "knee_bias(knee)": (lambda x: attend(_core.knee_bias(side, side, side, side, x)), 3),
    "table_bias(table)": (lambda x: attend(_core.table_bias(x, -K)), np.ones((H, 2 * K), F)),
    "sums_bias(sums)": (lambda x: attend(_core.sums_bias(x)), np.ones((B, H, K), D)),
    "dense_bias(dense)": (lambda x: attend(_core.dense_bias(x)), np.ones((B, H, Q, K), F)),
    "CallRule(mask_options)": (lambda x: _core.CallRule(0.5, 0.0, x), [1, 2**31, 0, 0]),
    "CallRule(scale)": (lambda x: _core.CallRule(x, 0.0, [1, 2**31, 0, 0]), 0.5),
    "Dropout": (lambda x: _core.Dropout(x, x, x, x, x, x), 7),
    "random_numbers(shape)": (lambda x: _core.random_numbers(dropout, x), (1, 2, 3, 4)),
    "random_numbers(dropout)": (lambda x: _core.random_numbers(x, (1, 2, 3, 4)), dropout),
    **{
        f"merge({name})": (
            lambda x, name=name: _core.merge(**{
                "outputs": [output, output], "logsumexps": [per_query, per_query],
                "output": output.copy(), "logsumexp": per_query.copy(), name: x,
            }),
            right,
        )
        for name, right in {
            "outputs": [output, output], "logsumexps": [per_query, per_query], "output": output,
            "logsumexp": per_query,
        }.items()
    },
    "merge(part)": (
        lambda x: _core.merge([output, x], [per_query] * 2, output.copy(), per_query.copy()),
        output,
    ),
    "merge(log)": (
        lambda x: _core.merge([output] * 2, [per_query, x], output.copy(), per_query.copy()),
        per_query,
    ),
    **{
        f"measure_key_norms({name})": (
            lambda x, name=name: _core.measure_key_norms(**{
                "key": key, "known": 0, "norms": norms.copy(), "centres": centres.copy(), name: x,
            }),
            right,
        )
        for name, right in {"key": key, "known": 0, "norms": norms, "centres": centres}.items()
    },
    "measure_key_norms(scales)": (
        lambda x: _core.measure_key_norms(rows, 0, norms.copy(), centres.copy(), x), scales,
    ),
    **{
        f"key_bias({name})": (
            lambda x, name=name: _core.key_bias(**{
                "mask": np.ones((B, K), np.uint8), "slopes": np.ones((B, H, 1), F),
                "anchor": _core.Anchor.first, "dtype": float32,
                "out": np.ones((B * H, 1, K), F), name: x,
            }),
            right,
        )
        for name, right in {
            "mask": np.ones((B, K), np.uint8), "slopes": np.ones((B, H, 1), F),
            "out": np.ones((B * H, 1, K), F), "anchor": _core.Anchor.first, "dtype": float32,
        }.items()
    },
    **{
        f"relative_bias({name})": (
            lambda x, name=name: _core.relative_bias(**{
                "left": slopes, "right": slopes, "dtype": float32,
                "out": np.ones((B, H, Q, K), F), name: x,
            }),
            right,
        )
        for name, right in {
            "left": slopes, "right": slopes, "dtype": float32, "out": np.ones((B, H, Q, K), F),
        }.items()
    },
    "alibi_exponents(num_heads)": (lambda x: _core.alibi_exponents(x, press), 8),
    "alibi_exponents(rule)": (lambda x: _core.alibi_exponents(8, x), press),
    "select_isa": (lambda x: _core.select_isa(x), _core.active_isa()),
    "set_num_threads": (lambda x: _core.set_num_threads(x), 1),
}  # fmt: skip

WITHOUT_ARGUMENTS = {
    "no_bias", "available_isas", "active_isa", "cpu_vendor", "num_threads", "forked",
    "after_fork_in_child",
}  # fmt: skip

#: Classes that nobody makes, and one whose arguments "attention(scales)" has.
KINDS = {"AttentionBias", "Anchor", "DType", "SlopeRule", "KeyScales"}

#: What is no array of the right kind for any argument.
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 2**40, -(2**40), 10**400, float("nan"), "x", "\ud800", b"x", [], [[]],
    [1], (), {}, object(), Ellipsis, np.float32, none, rule, dropout, tokens(), press, float32,
    [None], [np.ones(3, F)], (None, None), [-1, -1, -1, -1], (2**40,) * 4, np.ma.masked,
)  # fmt: skip

DTYPES = ("f8", "f2", "i8", "u1", "i2", "b1", "c8", "O", "S0", "U1", ">f4", "M8[s]", "f4,i1")


def variants(array: Any) -> Iterator[Any]:
    """Yield arrays that differ from a right one in axes, sizes, dtype, strides or flags."""
    yield np.ones((), array.dtype)
    yield array[None]
    yield array[0]
    for axis, size in enumerate(array.shape):
        for other in (0, 1, size - 1, size + 1, 2 * size):
            shape = (*array.shape[:axis], other, *array.shape[axis + 1 :])
            yield np.ones(shape, array.dtype)
        yield np.flip(array, axis)
        yield np.repeat(array, 2, axis)[(slice(None),) * axis + (slice(None, None, 2),)]
        yield np.broadcast_to(np.take(array, [0], axis) if size else array, array.shape)
    yield np.asfortranarray(array)
    yield array.T
    for dtype in DTYPES:
        yield np.zeros(array.shape, dtype)
    packed = np.zeros(array.shape, [("pad", "i1"), ("x", array.dtype)])["x"]
    yield packed
    fixed = array.copy()
    fixed.flags.writeable = False
    yield fixed
    yield array.tolist()
    yield array.ravel().tolist()


def main() -> None:
    """Make all calls."""
    warnings.simplefilter("ignore")
    covered = {name.split("(")[0] for name in CALLS} | WITHOUT_ARGUMENTS
    assert covered >= {name for name in dir(_core) if callable(getattr(_core, name))} - KINDS
    for name, (call, right) in CALLS.items():
        call(right.copy() if isinstance(right, np.ndarray) else right)
        arrays = list(variants(right)) if isinstance(right, np.ndarray) else []
        for value in (*VALUES, *arrays):
            print(f"{name}: {type(value).__name__} {getattr(value, 'shape', '')}", flush=True)
            try:
                call(value)
            except (TypeError, ValueError):
                pass
            finally:
                _core.set_num_threads(1)
    print("done", flush=True)


if __name__ == "__main__":
    main()

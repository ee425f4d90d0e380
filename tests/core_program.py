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
everything = [1, 2**31, 0, 0]
none = _core.Bias()
dropout = _core.Dropout(7, 1, 0, 0, 0, 0)
float32 = _core.DType.float32


#: The arguments of a problem that may be None.
TOKENS: dict[str, Any] = {
    "factors": slopes, "query_positions": np.zeros((B, Q), I32),
    "key_positions": np.zeros((B, K), I32), "key_mask": np.ones((B, K), np.uint8),
    "pairs": _core.BlockMask(np.ones((1, 1, Q, K), bool)), "segments": segments,
}  # fmt: skip


def problem(bias: Any = none, **others: Any) -> Any:
    given = {"shape": (B, H, Q, K), "mask": everything, "scale": 0.5, "skip_tolerance": 0.0}
    return _core.Problem(bias=bias, **{**given, **others})


def attend(problem: Any = problem(), **others: Any) -> None:  # noqa: B008 (it does not change)
    given = {"query": query, "key": key, "value": key, "output": output.copy(), **others}
    _core.attention(problem, **given)


def differentiate(problem: Any = problem(), **others: Any) -> None:  # noqa: B008
    given: dict[str, Any] = {
        "query": query, "key": key, "value": key, "output": output, "logsumexp": per_query,
        "output_gradient": output, "logsumexp_gradient": floats, "query_gradient": output.copy(),
        "key_gradient": key.copy(), "value_gradient": key.copy(), "bias_gradients": {},
        "dropout": dropout, **others,
    }  # fmt: skip
    _core.attention_gradients(problem, **given)


def in_gradients(**given: Any) -> None:
    table = _core.Bias(table=np.ones((H, 2 * K), F), table_begin=-K)
    differentiate(problem(table if "table" in given else none), bias_gradients=given)


def in_problem(name: str) -> Any:
    def call(value: Any) -> None:
        others = {key: x for key, x in TOKENS.items() if key != "segments"}
        made = problem(**{**others, name: value})
        for compute in (attend, differentiate):
            compute(made)

    return call


def in_bias(name: str, *slopes: str) -> Any:
    def call(value: Any) -> None:
        attend(problem(_core.Bias(**{**dict.fromkeys(slopes, side), name: value})))

    return call


#: By name, a function of one argument, and the right one.
CALLS: dict[str, tuple[Any, Any]] = {
    **{
        f"attention({name})": (lambda x, name=name: attend(**{name: x}), right)
        for name, right in {
            "query": query, "key": key, "value": key, "output": output, "problem": problem(),
            "logsumexp": per_query, "block_counts": np.zeros((B, H, 3), np.int64),
            "key_norms": (norms, centres), "known_logsumexps": per_query, "dropout": dropout,
        }.items()
    },
    "attention(rows)": (
        lambda x: attend(key=x, value=x, scales=(scales, scales)), rows,
    ),
    "attention(scales)": (
        lambda x: attend(key=rows, value=rows, scales=(x, scales)), scales,
    ),
    "attention(norms)": (lambda x: attend(key_norms=(x, centres)), norms),
    "attention(centres)": (lambda x: attend(key_norms=(norms, x)), centres),
    **{
        f"attention_gradients({name})": (lambda x, name=name: differentiate(**{name: x}), right)
        for name, right in {
            "query": query, "key": key, "value": key, "output": output, "logsumexp": per_query,
            "output_gradient": output, "logsumexp_gradient": floats, "query_gradient": output,
            "key_gradient": key, "value_gradient": key, "bias_gradients": {},
        }.items()
    },
    **{
        f"attention_gradients({name} of the bias)": (
            lambda x, name=name: in_gradients(**{name: x}), right,
        )
        for name, right in {
            "left": floats, "right": floats, "table": np.zeros((H, 2 * K), D),
            "sums": np.zeros((B, H, K), D), "dense": np.zeros((B, H, Q, K), F),
        }.items()
    },
    **{
        f"Problem({name})": (in_problem(name), right)
        for name, right in {
            **TOKENS, "shape": [B, H, Q, K], "mask": everything, "scale": 0.5,
            "skip_tolerance": 0.5, "bias": none,
        }.items()
    },
    "BlockMask": (
        lambda x: attend(problem(pairs=_core.BlockMask(x))), np.ones((1, H, Q, K), bool),
    ),
    "Bias(left)": (in_bias("left", "right"), slopes),
    "Bias(right)": (in_bias("right", "left"), slopes),
    "Bias(table)": (in_bias("table"), np.ones((H, 2 * K), F)),
    "Bias(sums)": (in_bias("sums"), np.ones((B, H, K), D)),
    "Bias(dense)": (in_bias("dense"), np.ones((B, H, Q, K), F)),
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
    "select_isa": (lambda x: _core.select_isa(x), _core.active_isa()),
    "set_num_threads": (lambda x: _core.set_num_threads(x), 1),
}  # fmt: skip

WITHOUT_ARGUMENTS = {
    "available_isas", "active_isa", "cpu_vendor", "num_threads", "forked", "after_fork_in_child",
}  # fmt: skip

#: Classes that nobody makes.
KINDS = {"Anchor", "DType"}

#: What is no array of the right kind for any argument.
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 2**40, -(2**40), 10**400, float("nan"), "x", "\ud800", b"x", [], [[]],
    [1], (), {}, object(), Ellipsis, np.float32, none, dropout, problem(), float32,
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

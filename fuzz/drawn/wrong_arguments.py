"""Public functions with right arguments, and wrong values of each argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import ntk_alibi as na
from fuzz.oracle.bias_cases import BIAS_CASES
from fuzz.oracle.scaling_cases import SCALING_CASES
from fuzz.wrong_values import (
    NO_ARRAY,
    NO_BOOLEAN,
    NO_CHOICE,
    NO_COUNT,
    NO_HEADS,
    NO_INTEGER,
    NO_MASK,
    NO_NUMBER,
    NO_POSITIONS,
    NO_SEGMENTS,
    ones,
)
from ntk_alibi.fused.gradients import attention_gradients

NO_SCALING = ("ntk", 3, na.NTK, object(), {"alibi_type": "ntk"}, np.ones(4))


@dataclass(frozen=True)
class Function:
    """A public function.

    Attributes:
        name: its name in reports.
        call: the function.
        right: arguments that it takes.
        wrong: by argument, values that it must refuse.
        also: by argument, other names that the message may have instead, of what contradicts it.
    """

    name: str
    call: Callable[..., Any]
    right: dict[str, Any]
    wrong: dict[str, tuple[Any, ...]]
    also: dict[str, tuple[str, ...]] = field(default_factory=dict)


def _attention() -> Function:
    right = {"query": ones(2, 4, 3, 8), "key": ones(2, 2, 3, 8), "value": ones(2, 2, 3, 8)}
    wrong: dict[str, tuple[Any, ...]] = {
        "query": (*NO_ARRAY, ones(2, 3, 3, 8), ones(3, 4, 3, 8), ones(2, 4, 3, 7),
            np.ones((2, 4, 3, 8)),
        ),
        "key": (*NO_ARRAY, ones(2, 3, 3, 8), ones(2, 0, 3, 8), ones(2, 2, 3, 9), ones(1, 2, 3, 8)),
        "value": (*NO_ARRAY, ones(2, 2, 4, 8), ones(2, 2, 3, 9), ones(2, 4, 3, 8)),
        "bias": (
            "x", 3, 0.5, object(), na.ALiBi, na.ALiBi(5), na.KerpleLog([1.0], [1.0]), [1.0],
            np.ones((3, 3), int), np.ones((3, 3), complex), ones(4, 4), ones(5, 2, 4, 3, 3),
            na.DistanceTable(np.ones((4, 2))), na.ForgetGates(-np.ones((2, 4, 5))),
            na.ALiBi(4, slopes=ones(3, 4)), na.ALiBi(4, slopes=ones(1, 4, 5)),
        ),
        "causal": NO_BOOLEAN,
        "window": (*NO_INTEGER, 0),
        "causal_block": (*NO_INTEGER, 0),
        "sink": (*NO_INTEGER, None),
        "mask": (
            "x", True, object(), na.BlockMask, [[True]], ones(1, 1, 3, 3),
            np.ones((1, 1, 3, 3), int),
            *(np.ones(n, bool) for n in ((3, 3), (3, 1, 3, 3), (2, 3, 3, 3), (1, 1, 2, 3))),
        ),
        "key_padding_mask": NO_MASK,
        "query_positions": NO_POSITIONS,
        "key_positions": NO_POSITIONS,
        "align": NO_CHOICE,
        "segment_ids": NO_SEGMENTS,
        "query_segment_ids": (*NO_SEGMENTS, [0, 0, 0]),
        "scale": NO_NUMBER,
        "skip_tolerance": (*NO_NUMBER, -0.1, 1.0, 3),
        "rotary": ("x", na.RoPE, na.RoPE(6), na.XPOS(4), 3, np.ones(8)),
        "log_n": (*NO_INTEGER, 0, 1, na.LogN, {}, {"train_length": 1}, na.LogN(8, (1.0, 2.0))),
        "key_norms": ("x", 3, na.KeyNorms, na.KeyNorms()),
        "dropout": (*NO_NUMBER, 1.5, -0.5, None),
        "seed": ("x", 0.5, -1, 2**64),
        "return_logsumexp": NO_BOOLEAN,
        "return_stats": NO_BOOLEAN,
    }  # fmt: skip
    also: dict[str, tuple[str, ...]] = {
        "query": ("key",),
        "key": ("value",),
        "query_segment_ids": ("segment_ids",),
        "bias": ("table", "log_gates", "slopes"),
        "log_n": ("train_length", "strength"),
    }
    return Function("attention", na.attention, right, wrong, also)


def _gradients() -> Function:
    output = ones(2, 4, 3, 8)
    right = {"query": output, "key": ones(2, 2, 3, 8), "value": ones(2, 2, 3, 8)}
    right |= {"output": output, "logsumexp": ones(2, 4, 3), "output_gradient": output}
    whole = (None, "x", 3, ones(2, 4, 3, 7), np.ones((2, 4, 3, 8)), np.ones((2, 4, 3, 8), complex))
    return Function(
        "attention_gradients",
        attention_gradients,
        right,
        {
            "query": NO_ARRAY,
            "output": whole,
            "output_gradient": whole,
            "logsumexp": (
                None,
                "x",
                3,
                ones(2, 4),
                np.ones((2, 4, 3), complex),
                np.ones((2, 4, 3), str),
            ),
            "logsumexp_gradient": ("x", 3, ones(2, 4), np.ones((2, 4, 3), complex)),
            "window": (*NO_INTEGER, 0),
            "scale": NO_NUMBER,
        },
        {"query": ("key",)},
    )


def _biases() -> list[Function]:
    four = ones(4)
    slopes = (
        "x", 3, object(), ones(3), ones(2, 3), ones(1, 1, 1, 4), np.full(4, np.nan),
        np.full(4, -np.inf), np.ones(4, int), np.ones(4, complex), ["a"] * 4,
    )  # fmt: skip
    return [
        Function("ALiBi", na.ALiBi, {"num_heads": 4}, {
            "num_heads": NO_COUNT, "scaling": NO_SCALING, "sides": NO_CHOICE, "slopes": slopes,
            "exempt": (*NO_INTEGER, None),
        }),
        Function("BiALiBi", na.BiALiBi, {"first": four, "left": four, "right": four}, {
            "first": NO_HEADS, "left": NO_HEADS, "right": NO_HEADS,
        }, {"first": ("left",)}),
        Function("T5", na.T5, {"values": ones(4, 32)}, {
            "values": (
                "x", None, 3, four, ones(4, 3), ones(4, 0), np.full((4, 32), np.nan),
                np.full((4, 32), np.inf),
            ),
            "bidirectional": NO_BOOLEAN, "max_distance": (*NO_COUNT, 3),
        }),
        Function("DistanceTable", na.DistanceTable, {"table": ones(4, 5)}, {
            "table": (
                "x", None, 3, four, ones(4, 0), np.full((4, 5), np.nan), np.full((4, 5), np.inf),
                np.ones((4, 5), complex),
            ),
            "begin": ("3", 1.5, True, None, [1], -2**40),
        }),
        Function("DistanceFunction", na.DistanceFunction, {"function": np.abs, "num_heads": 4}, {
            "function": ("x", None, 3, _none, _wrong_shape, _nan), "num_heads": NO_COUNT,
        }, {"function": ("linear", "Linear")}),  # a function's own errors
        Function("ForgetGates", na.ForgetGates, {"log_gates": -ones(2, 4, 3)}, {
            "log_gates": (
                "x", None, 3, four, ones(2, 4, 3), -ones(2, 0, 3), np.ones((2, 4, 3), complex),
            ),
        }),
        *(
            Function(
                name, getattr(na, name), case.options | dict.fromkeys(case.parameters, four),
                case.wrong, case.also,
            )
            for name, case in BIAS_CASES.items()
        ),
    ]  # fmt: skip


def _none(distance: Any) -> None:
    del distance


def _wrong_shape(distance: Any) -> Any:
    return distance[:1]


def _nan(distance: Any) -> Any:
    return distance * np.nan


def _scalings() -> list[Function]:
    config = {"alibi_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 20}
    return [
        *(
            Function(name, getattr(na, name), case.right, case.all_wrong)
            for name, case in SCALING_CASES.items()
        ),
        Function("LogN", na.LogN, {"train_length": 8}, {
            "train_length": (*NO_INTEGER, None, 1),
            "strength": ("x", None, object(), -1, np.nan, [], [[1.0]], ["x"]),
        }),
        Function("scaling_from_config", na.scaling_from_config, {"config": config}, {
            "config": (
                "x", None, 3, {}, [config], {**config, "alibi_type": "x"}, {**config, "more": 1},
                {"alibi_type": "ntk"}, {**config, "alibi_type": ["ntk"]},
            ),
        }, {"config": ("alibi_type",)}),
    ]  # fmt: skip


def _positions() -> list[Function]:
    common = {"head_dim": (*NO_COUNT, 3, 257, 1000), "base": (*NO_NUMBER, None, 1.0, 0.5, -3),
              "layout": NO_CHOICE, "rotary_dim": (*NO_INTEGER, 3, 0, 10)}  # fmt: skip
    right = {"x": ones(2, 4, 3, 8)}
    lengths = {"query_length": 2, "key_length": 3, "train_length": 8}
    return [
        Function("RoPE", na.RoPE, {"head_dim": 8}, {**common, "factor": (*NO_NUMBER, None, 0.5)}),
        Function("XPOS", na.XPOS, {"head_dim": 8}, {
            **common, "scale_base": (*NO_NUMBER, None, 0, -1), "gamma": (*NO_NUMBER, None, 0.0, -1),
        }),
        Function("RoPE.stretched", na.RoPE(8).stretched, {"scaling": na.NTK(2.0)}, {
            "scaling": (*NO_SCALING, None, na.DynamicNTK()),
        }),
        Function("RoPE.rotate", na.RoPE(8).rotate, right, {
            "x": (*NO_ARRAY, ones(2, 4, 3, 7)), "positions": NO_POSITIONS,
        }),
        Function("log_n_scale", na.log_n_scale, lengths, {
            "query_length": (*NO_INTEGER, None), "key_length": (*NO_INTEGER, None),
            "train_length": (*NO_COUNT, 1), "key_padding_mask": NO_MASK,
            "key_positions": NO_POSITIONS, "query_positions": NO_POSITIONS,
            "causal": NO_BOOLEAN, "window": (*NO_INTEGER, 0),
        }),
    ]  # fmt: skip


def _results() -> list[Function]:
    parts = {"outputs": [ones(1, 2, 3, 4)] * 2, "logsumexps": [ones(1, 2, 3)] * 2}
    lists: tuple[Any, ...] = (
        "x", None, 3, [], [None, None], [ones(1, 2, 3, 5)] * 3, [ones(3)] * 2, ["a", "b"],
    )  # fmt: skip
    mask = np.ones((2, 3))
    lengths = ("x", 3, [1.5], [-1], [[1]], [2**31], ["a"], [True], np.ones(2), object())
    scaled = {"num_heads": 4, "scaling": na.DynamicNTK(train_length=20), "lengths": [3]}
    return [
        Function("merge", na.merge, parts, {
            "outputs": lists, "logsumexps": lists,
        }, {"outputs": ("logsumexps",), "logsumexps": ("outputs",)}),
        Function("KeyNorms.update", na.KeyNorms().update, {"key": ones(1, 2, 3, 4)}, {
            "key": NO_ARRAY,
        }),
        Function("alibi_slopes", na.alibi_slopes, scaled, {
            "num_heads": NO_COUNT, "scaling": NO_SCALING,
            "lengths": (*lengths, None),
            "rule": NO_CHOICE,
        }),
        Function("alibi_slopes of NTK", na.alibi_slopes, {"num_heads": 4, "scaling": na.NTK(2.0)}, {
            "lengths": lengths,
        }),
        Function("BlockMask", na.BlockMask, {"mask": np.ones((1, 1, 3, 3), bool)}, {
            "mask": (
                None, "x", np.ones((3, 3), bool), np.ones((1, 1, 3, 3), int), np.bool_(1),
                [[[[True]]]], ones(1, 1, 3, 3), object(),
            ),
        }),
        Function("QuantizedRows", na.QuantizedRows, {
            "numbers": np.ones((1, 2, 3, 4), np.int8),
            "scales": ones(1, 2, 3),
        }, {
            "numbers": (*NO_ARRAY, np.ones((1, 2, 2, 4), np.int8)),
            "scales": (None, "x", 3, ones(1, 2), np.ones((1, 2, 3)), torch.ones(1, 2, 3)),
        }, {"numbers": ("scales",)}),
        Function("QuantizedRows.of", na.QuantizedRows.of, {"x": ones(1, 2, 3, 4)}, {"x": NO_ARRAY}),
        Function("segment_ids_from_cu_seqlens", na.segment_ids_from_cu_seqlens, {
            "cu_seqlens": np.array([0, 2, 5]),
        }, {
            "cu_seqlens": (
                None, "x", 3, [], [0.0, 2.0], [1, 2], [0, 3, 2], np.ones((2, 2), int), object(),
                np.array([True]), np.ma.masked_array([0, 1]),
            ),
        }),
        Function("build_alibi_tensor", na.build_alibi_tensor, {
            "attention_mask": mask, "num_heads": 4, "dtype": np.float32,
        }, {
            "attention_mask": (*NO_MASK[:3], *NO_MASK[5:], None, [[1, 1]]), "num_heads": NO_COUNT,
            "dtype": (np.int32, "x", None, 3, object(), torch.int32, complex),
            "scaling": NO_SCALING,
            "anchor": NO_CHOICE, "out": ("x", 3, ones(3), np.ones((8, 1, 3)), torch.ones(8, 1, 3)),
        }),
        Function("ALiBi.tensor", na.ALiBi(4).tensor, {"query_length": 2, "key_length": 3}, {
            "query_length": (*NO_INTEGER, None), "key_length": (*NO_INTEGER, None),
            "dtype": (np.int32, "x", 3, object(), torch.int32), "lengths": lengths,
            "out": ("x", 3, ones(3), np.ones((1, 4, 2, 3))),
        }),
        Function("set_num_threads", na.set_num_threads, {"num_threads": 1}, {
            "num_threads": (*NO_INTEGER, None),
        }),
    ]  # fmt: skip


def _modules() -> list[Function]:
    module: dict[str, Any] = {"num_heads": 4, "embed_dim": 8}
    attend, x = na.AlibiAttention(**module), torch.ones(2, 3, 8)
    no_rows = (None, "x", 3, np.ones((2, 3, 8)), x[0], x[..., 1:], x[:1])
    return [
        Function("AlibiAttention", na.AlibiAttention, module, {
            "num_heads": (*NO_COUNT, 3), "embed_dim": (*NO_COUNT, 3, 9, 4 * 257),
            "slopes": (
                "x", object(), -1.0, 1e39, np.nan, True, ones(3), [0.5] * 3, torch.ones(2, 4),
                torch.ones(4, dtype=torch.int64), na.NTK(2.0),
            ),
            "bias": (
                "x", 3, object(), na.ALiBi, na.ALiBi(3), [1.0],
                np.ndarray, np.ones((3, 3), int), na.NTK(2.0),
            ),
            "causal": NO_BOOLEAN, "scaling": NO_SCALING, "num_kv_heads": (*NO_INTEGER, 0, 3),
            "window": (*NO_INTEGER, 0), "align": NO_CHOICE,
            "dropout": (*NO_NUMBER, 1.5, -0.5, None),
        }, {"num_heads": ("embed_dim",), "num_kv_heads": ("num_heads",)}),
        Function("AlibiAttention.forward", attend, {"q": x, "k": x, "v": x}, {
            "q": no_rows, "k": (*no_rows, torch.ones(2, 0, 9)), "v": no_rows,
            "mask": ("x", True, object(), na.BlockMask, torch.ones(2, 3), torch.ones(1, 1, 3, 3)),
            "key_padding_mask": NO_MASK,
        }, {"q": ("k",), "k": ("v",)}),
    ]  # fmt: skip


def _precision() -> list[Function]:
    dtypes = (np.int32, "x", None, 3, object(), torch.int32, complex, ones(3), torch.ones(3))
    both: Any = na.precision
    vectors = {"query": ones(1, 4), "key": ones(3, 4)}
    return [
        Function("rounded", both.rounded, {
            "numbers": ones(3), "dtype": "float16",
        }, {
            "numbers": ("x", None, object(), [[1.0], [1.0, 2.0]]),
            "dtype": dtypes,
        }),
        *(
            Function(function.__name__, function, {"dtype": "float16", "window": 9}, {
                "dtype": dtypes, "window": NO_COUNT,
            })
            for function in (both.exact_fraction, both.collisions)
        ),
        Function("softmax_error", both.softmax_error, {
            **vectors, "slope": 0.5, "dtype": "float16", "form": "absolute",
        }, {
            "query": ("x", None, object(), ones(4), ones(1, 3), ones(4, 4)),
            "key": ("x", None, object(), ones(4), ones(3, 3), ones(0, 4)),
            "slope": (*NO_NUMBER, -1.0), "dtype": dtypes, "form": NO_CHOICE,
        }, {"key": ("query",)}),
        Function("rope_tables", both.rope_tables, {
            "length": 3, "head_dim": 4, "dtype": "float16", "repaired": True,
        }, {
            "length": NO_COUNT, "head_dim": (*NO_COUNT, 3), "dtype": dtypes,
            "base": (*NO_NUMBER, 1.0), "repaired": NO_BOOLEAN,
        }),
    ]  # fmt: skip


FUNCTIONS = [
    _attention(), _gradients(), *_biases(), *_scalings(), *_positions(), *_results(), *_modules(),
    *_precision(),
]  # fmt: skip

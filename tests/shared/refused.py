"""The table of wrong arguments: a function, an argument, wrong values, the class of the error.

These values contradict another argument, or few functions take them;
`fuzz/drawn/wrong_arguments.py` has what is wrong for one argument of a public function in any call.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import create_block_mask

import ntk_alibi as na
from ntk_alibi import inspection, plots
from ntk_alibi.biases import BiasObject, KernelBias
from ntk_alibi.fused.gradients import attention_gradients
from ntk_alibi.methods import parse_method
from ntk_alibi.torch import learned_bias
from pictures import Letters, random_model, stats, summary
from small_models import make_model

#: The name that an error begins with, its class, and each time the arguments that are wrong.
Rows = list[tuple[Any, ...]]

HEADS, QUERIES, KEYS = 2, 3, 5
QUERY, KEY = np.ones((1, HEADS, QUERIES, 8), np.float32), np.ones((1, HEADS, KEYS, 8), np.float32)
LOG, HALF = QUERY[..., 0], np.ones((1, 1, 1, 1), np.float16)
ROWS = na.QuantizedRows.of(KEY)
TENSORS = torch.from_numpy(QUERY), torch.from_numpy(KEY)
RECORDED = torch.ones(1, HEADS, 3, 8, requires_grad=True)
LEARNED = torch.ones(HEADS, requires_grad=True)
META = torch.ones(1, KEYS, device="meta")
NORMS = na.KeyNorms().update(KEY)
IDS = np.array([0, 0, 1, 1, 1])
FIRST_ONLY = {"segment_ids": IDS, "query_segment_ids": [0, 0, 0]}
KERPLE = na.KerpleLog([1.0] * HEADS, 1.0)
GATES = na.ForgetGates(-np.ones((1, HEADS, KEYS)))
INF = float("inf")


def of(query: Any, key: Any, **options: Any) -> dict[str, Any]:
    """Return arguments of attention, whose values are its keys."""
    return {"query": query, "key": key, "value": key, **options}


def masked(array: Any) -> Any:
    return np.ma.masked_array(array, array > 1)


class Foreign(BiasObject):
    """A user's bias, which returns anything."""

    def __init__(self, *made: Any, **fields: Any) -> None:
        self.define(made=made[0] if made else KernelBias(**fields), num_heads=2, sides="symmetric")

    def kernel_bias(self, problem: Any, like: Any = None) -> Any:
        return self.made


class Forgetful(Foreign):
    """A user's bias, which forgets `define`."""

    def __init__(self) -> None:
        pass


def score_mod(score: Any, *at: Any) -> Any:
    return score


def patch_saved(**entry: Any) -> None:
    model = make_model("bloom", layers=1)
    model.config.ntk_alibi = entry
    na.patch(model)


class Returns:
    """A user's scaling, which returns anything."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def scale_exponents(self, exponents: Any, lengths: Any = None) -> Any:
        return self.result


ONE_OF_BOTH = np.ones((1, HEADS, 1), np.float32)
SLOPES = ONE_OF_BOTH[0, :, 0]
PAIRS = np.ones((1, 1, QUERIES, KEYS), bool)
FLEX = create_block_mask(lambda b, h, i, j: i >= j, None, None, QUERIES, KEYS, device="cpu")
NESTED = torch.nested.nested_tensor([torch.ones(3, HEADS, 8)] * 2, layout=torch.jagged)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its interface may change
    MASKING = torch.masked.masked_tensor(TENSORS[1], TENSORS[1] > 2)
SWAPPED = np.ones((1, 9, 4, 8), np.float32)

ATTENTION: Rows = [
    ("key", ValueError, {"query": TENSORS[0], "key": META[..., None, None]}),
    ("key", TypeError, {"query": TENSORS[0]}, of(TENSORS[0], ROWS), of(TENSORS[0], MASKING)),
    ("head_dim", ValueError, of(QUERY[..., :0], KEY[..., :0])),
    ("query", ValueError, of(np.broadcast_to(HALF, (1, 1, 2**31, 1)), HALF)),
    ("query", ValueError, of(SWAPPED, SWAPPED[:, :7])),
    ("query", TypeError, of(NESTED, NESTED)),
    ("key and value", TypeError, {"key": ROWS}),
    ("value", ValueError, {"key": ROWS, "value": ROWS[:, :, :2]}),
    ("causal", ValueError, *({**x, "causal": False} for x in (
        {"causal_block": 8}, {"rotary": na.XPOS(8)},
    ))),
    ("scale", ValueError, {"scale": -1e39}, {"scale": 1e-40}),
    ("scale", TypeError, {"scale": np.ma.masked}, {"scale": RECORDED[0, 0, 0, 0]}),
    ("mask", TypeError, *({"mask": x} for x in (torch.from_numpy(PAIRS), masked(PAIRS), FLEX))),
    ("key_padding_mask", TypeError, {"key_padding_mask": [[1] * KEYS]}),
    ("query_positions", ValueError, {"align": "start", "query_positions": np.arange(QUERIES)}),
    ("query_positions", TypeError, {"bias": KERPLE, "query_positions": LOG[0, 0]}),
    ("positions", ValueError, {"bias": KERPLE, "key_positions": [0, 1, 2, 3, 2**30]}),
    ("key_positions", ValueError, {"rotary": na.RoPE(8), "key_positions": np.arange(5) + 0.5}),
    # segments
    ("query_segment_ids", ValueError, {"segment_ids": IDS, "query_segment_ids": [1, 0, 1]},
        {"segment_ids": IDS, "query_segment_ids": IDS}, of(KEY, QUERY, segment_ids=[0, 0, 1]),
        {"bias": GATES, **FIRST_ONLY}),
    ("segment_ids", ValueError, {"query_segment_ids": IDS[:QUERIES]}),
    ("align", ValueError, {"segment_ids": IDS, "align": "start"}),
    ("key_positions", ValueError, {"segment_ids": IDS, "key_positions": [0, 1, 2, 4, 3]}),
    ("query_positions", ValueError, {**FIRST_ONLY, "key_positions": np.arange(KEYS)}),
    # results over other keys, and norms
    ("initial", TypeError, *({"initial": x} for x in (
        [QUERY, LOG], (TENSORS[0], LOG), (QUERY, None), (QUERY.astype("f2"), LOG),
        (QUERY, LOG.astype("f2")), (masked(QUERY), LOG),
    ))),
    ("key_norms", ValueError, *({"key_norms": NORMS, **others} for others in (
        {"rotary": na.RoPE(8)}, {"key_padding_mask": np.ones((1, KEYS))}, {"segment_ids": IDS},
        {"bias": na.ALiBi(HEADS, exempt=1)},
    ))),
    ("key_norms", TypeError, of(QUERY.astype("f2"), KEY.astype("f2"), key_norms=NORMS)),
    ("seed", ValueError, {"dropout": 0.1}),
    # biases, as far as a call checks them
    ("bias", TypeError, *({"bias": bias} for bias in (
        torch.eye(3).to_sparse(), masked(np.eye(KEYS)[:QUERIES]), na.ALiBi, na.NTK(4.0),
        Forgetful(), score_mod, partial(score_mod, 1.0), max,
    ))),
    ("bias", ValueError, {"bias": na.KerpleLog([1e300] * 2, 1.0)}, *(
        {"bias": na.ALiBi(HEADS), "causal": False, "mask": mask} for mask in (None, PAIRS)
    )),
    ("bias", ValueError, *(of(SWAPPED, SWAPPED[:, :, :keys], bias=bias) for keys, bias in (
        (4, na.ALiBi(4)), (2, na.ALiBi(4)), (4, np.ones((4, 9, 9), "f4")),
    ))),
    ("kernel_bias", TypeError, {"bias": Foreign(3)}),
    ("kernel_bias", ValueError, {"bias": Foreign(left=ONE_OF_BOTH, table=ONE_OF_BOTH[0])},
        {"bias": Foreign(left=ONE_OF_BOTH)}),
    ("slopes", ValueError, {"bias": Foreign(left=ONE_OF_BOTH[:, :1], right=ONE_OF_BOTH)}),
    ("left", ValueError, {"bias": Foreign(left=SLOPES, right=SLOPES)}),
    ("table", ValueError, {"bias": Foreign(table=SLOPES)}),
    ("sums", ValueError, {"bias": Foreign(sums=ONE_OF_BOTH)}),
    ("log_gates", ValueError, *(
        {"bias": na.ForgetGates(np.full((1, HEADS, KEYS), x))} for x in (-INF, -1e9)
    )),
    ("query_positions", ValueError, {"bias": GATES, "query_positions": np.arange(QUERIES)},
        {"bias": GATES, "align": "start"}),
]  # fmt: skip

#: Of tensors that torch records.
TAPED: Rows = [
    ("key_padding_mask", TypeError, {"key_padding_mask": META[:, :3]}),
    ("query_positions", TypeError, {"query_positions": META[0, :3]}),
    ("key_norms", ValueError, {"key_norms": NORMS}),
    ("return_stats", ValueError, {"return_stats": True}),
    ("a quantized key or value", ValueError, {"key": ROWS, "value": ROWS}),
    ("a parameter of the bias", TypeError, {"bias": na.DistanceTable(META[[0, 0]])}),
]

PATH = {"dtype": "bfloat16", "slope": 1.0, "length": 5, "form": "absolute"}

#: By name: a function, its right arguments, and rows.
REFUSED: dict[str, tuple[Callable[..., Any], dict[str, Any], Rows]] = {
    "attention": (na.attention, of(QUERY, KEY), ATTENTION),
    "attention, recorded": (na.attention, of(RECORDED, RECORDED), TAPED),
    "attention_gradients": (
        attention_gradients,
        of(QUERY, QUERY, output=QUERY, logsumexp=LOG, output_gradient=QUERY),
        [
            ("output_gradient", TypeError, {"output_gradient": QUERY.astype("f2")}),
            ("logsumexp", ValueError, {"logsumexp": LOG * 1e6}),
            ("key", TypeError, {"key": ROWS, "value": ROWS}),
            ("seed", ValueError, {"dropout": 0.5}),
        ],
    ),
    "merge": (na.merge, {"outputs": [QUERY], "logsumexps": [LOG]}, [
        ("outputs", ValueError, {"logsumexps": []}),
        ("outputs", TypeError, {"outputs": torch.ones(2, 1)}, {"outputs": [masked(QUERY)]},
            {"outputs": [QUERY, TENSORS[0]], "logsumexps": [LOG, LOG]}),
        ("out", TypeError, {"out": QUERY}),
        ("out", ValueError, {
            "outputs": [RECORDED], "logsumexps": [RECORDED[..., 0]],
            "out": (TENSORS[0], TENSORS[0][..., 0]),
        }),
    ]),
    "KeyNorms.update, again": (lambda key: na.KeyNorms().update(KEY).update(key), {}, [
        ("key", ValueError, *({"key": x} for x in (KEY[:, :, :2], KEY[:, :1], KEY[..., :4]))),
        ("key", TypeError, {"key": KEY.astype("f2")}),
    ]),
    "QuantizedRows": (na.QuantizedRows, vars(ROWS), [
        ("numbers", TypeError, {"numbers": KEY}), ("scales", TypeError, {"scales": [1.0]}),
    ]),
    "QuantizedRows[...]": (lambda index: ROWS[index], {}, [
        ("an index of QuantizedRows", IndexError, {"index": (..., slice(1))}),
    ]),
    "np.asarray": (np.asarray, {}, [("the argument", TypeError, {"a": ROWS})]),
    "MaxBias.max_alibi_bias": (na.MaxBias(4.0).max_alibi_bias, {"num_heads": 8}, [
        ("num_heads", ValueError, {"num_heads": 0}),
        ("base", ValueError, {"base": -8.0}), ("base", TypeError, {"base": "8"}),
    ]),
    "build_alibi_tensor": (
        na.build_alibi_tensor,
        {"attention_mask": np.ones((2, KEYS)), "num_heads": 4, "dtype": np.float32},
        [
            ("out", ValueError, {"out": np.empty((8, 1, 10), np.float32)[:, :, ::2]}),
            ("train_length", ValueError, {"scaling": na.DynamicNTK()}),
        ],
    ),
    "alibi_slopes": (na.alibi_slopes, {"num_heads": 4}, [
        ("lengths", ValueError, *(
            {"scaling": na.DynamicNTK(), "lengths": lengths} for lengths in (None, 5, [[5]])
        )),
        ("train_length", ValueError, {"scaling": na.DynamicNTK(), "lengths": [3]}),
        ("scale_exponents", ValueError, *(
            {"scaling": Returns(x)}
            for x in (np.zeros(3), np.zeros((2, 3)), np.zeros(()), np.full(4, np.nan))
        )),
    ]),
    "ALiBi": (na.ALiBi, {"num_heads": 2}, [
        ("slopes", ValueError, {"sides": "two_slopes"}, *(
            {"slopes": (SLOPES, SLOPES), "sides": x} for x in ("causal", "symmetric", "halves")
        )),
        ("slopes", ValueError, {"slopes": (SLOPES, np.ones(3)), "sides": "two_slopes"}),
        ("scaling", ValueError, {"scaling": na.NTK(2.0), "slopes": SLOPES}),
    ]),
    "ALiBi.tensor": (na.ALiBi(4, na.DynamicNTK()).tensor, {"query_length": 2, "key_length": 2}, [
        ("dtype", TypeError, {"dtype": np.float64}),
        ("out", TypeError, {"out": np.empty((1, 4, 2, 2), ">f4")}),
        ("lengths", ValueError, {"lengths": [3]}),
    ]),
    "tensor": (lambda bias: bias.tensor(KEYS + 1, KEYS), {}, [
        ("a parameter of the bias", ValueError, {"bias": na.KerplePower(LEARNED, 1.0)}),
        ("slopes", ValueError, {"bias": na.ALiBi(HEADS, slopes=LEARNED)}),
        ("query", ValueError, {"bias": GATES}),
        ("bias", TypeError, {"bias": Forgetful()}),
    ]),
    "biases": (lambda make: make(), {}, [
        (name, error, {"make": make})
        for name, error, make in (
            ("slopes", TypeError, lambda: KernelBias(slopes=SLOPES)),
            ("biases", TypeError, lambda: KernelBias(biases=SLOPES)),
            ("r1", TypeError, lambda: na.KerplePower(torch.ones(1).int(), 1.0)),
            ("r1", ValueError, lambda: na.KerplePower(1.0, [1.0])),
            ("r2", ValueError, lambda: na.KerplePower([1.0], [1.0, 1.0])),
            ("epsilon", ValueError, lambda: na.BAM([1.0], 1.0, epsilon=-1.0)),
            ("mu", ValueError, lambda: na.BAM([1.0], 1.0, mu=INF)),
            ("dimension", ValueError, lambda: na.Sandwich(2, 7)),
            ("scale", ValueError, lambda: na.Sandwich(2).concatenated(QUERY, KEY, scale=0.0)),
            ("query", ValueError, lambda: na.Sandwich(3).concatenated(QUERY, KEY)),
            ("table", TypeError, lambda: na.DistanceTable(torch.eye(4).to_sparse())),
            ("r1", ValueError, lambda: learned_bias.LearnedKerplePower(4, r1=0.0)),
            ("r2", ValueError, lambda: learned_bias.LearnedKerplePower(4, r2=2.0)),
            ("r2", ValueError, lambda: learned_bias.LearnedKerpleLog(4, r2=[1.0, 2.0])),
            ("alpha", ValueError, lambda: learned_bias.LearnedBAM(4, alpha=-1.0)),
            ("beta", ValueError, lambda: learned_bias.LearnedBAM(4, beta=[float("nan")] * 4)),
            ("bias", ValueError, lambda: learned_bias.LearnedForgetGates(16, 4, bias=[1.0] * 3)),
        )
    ]),
    "scaling_from_config": (na.scaling_from_config, {}, [
        ("config", ValueError, *({"config": config} for config in (
            {"alibi_type": "ntk", "factor": 2.0, "rate": 1}, {"alibi_type": "ntk"},
            {"alibi_type": "ntk", "factor": 2.0, "layers": [1]},
            {"type": "linear"}, {"type": "linear", "factor": 2, "train_seq_len": 9},
            {"type": "linear", "scale": 2}, {"alibi_type": "ntk", "type": "linear", "factor": 2},
        ))),
        ("type", ValueError, {"config": {"type": "ntk", "factor": 2}}),
    ]),
    "parse_method": (parse_method, {"train_length": 2048}, [
        ("an option", ValueError, {"name": "dynamic-ntk:query"}, {"name": "ntk:4:layers=0+2"}),
        ("method", ValueError, {"name": "original:ssmax=0.5"}),
    ]),
    "DynamicNTK": (na.DynamicNTK, {}, [("per", TypeError, {"per": "query"})]),
    "RoPE(2).stretched": (na.RoPE(2).stretched, {}, [
        ("scaling", ValueError, {"scaling": na.NTK(2.0)}),
    ]),
    "LogN": (na.LogN, {"train_length": 8}, [("strength", ValueError, {"strength": (1.0, 1e37)})]),
    "AlibiAttention": (na.AlibiAttention, {"num_heads": 6, "embed_dim": 48}, [
        ("scaling", ValueError, {"slopes": 1.0, "scaling": na.NTK(2.0)}),
        ("bias", ValueError, {"slopes": 1.0, "bias": torch.zeros(6, 2, 2)}),
        ("bias", TypeError, {"bias": Forgetful()}, {"bias": score_mod}),
    ]),
    "patch": (na.patch, {"model": make_model("bloom", layers=1)}, [
        ("bias", TypeError, {"method": Forgetful()}),
    ]),
    "patch of a saved entry": (patch_saved, {}, [
        ("config.ntk_alibi", ValueError, {"method": "dynamic-ntk:query"},
            {"log_n": {"train_length": 8, "biased": True}}),
    ]),
    "inspection.bias_by_distance": (
        inspection.bias_by_distance,
        {"bias": na.ALiBi(2), "longest": 4},
        [
            ("bias", TypeError, {"bias": 3}), ("longest", ValueError, {"longest": 0}),
            ("side", ValueError, {"side": "left"}),
        ],
    ),
    "inspection.receptive_field": (inspection.receptive_field, {"bias": na.ALiBi(2)}, [
        ("share", ValueError, {"share": 1.0}, {"share": 0.0}),
        ("share", TypeError, {"share": "1/e"}),
    ]),
    "inspection.weights": (inspection.weights, {"query_length": 4}, [
        ("query_length", ValueError, {"query_length": 0}), ("window", ValueError, {"window": 0}),
    ]),
    "precision.alibi_row": (na.precision.alibi_row, PATH, [
        ("slope", ValueError, {"slope": -1}), ("length", ValueError, {"length": 0}),
        ("form", ValueError, {"form": "last"}),
    ]),
    "precision.last_positions": (na.precision.last_positions, {"dtype": "bfloat16", "window": 9}, [
        ("count", ValueError, {"count": 0}),
    ]),
    "plots.slopes": (plots.slopes, {"num_heads": 4}, [
        ("num_heads", ValueError, {"num_heads": 0}), ("ax", TypeError, {"ax": 3}),
        ("scaling", TypeError, {"scalings": na.NTK}),
    ]),
    "plots.receptive_field": (plots.receptive_field, {"biases": na.ALiBi(4)}, [
        ("bias", TypeError, {"biases": 3}), ("share", ValueError, {"shares": [2]}),
        ("heads x longest", ValueError, {"biases": na.ALiBi(10_000)}),
    ]),
    "plots.bias_maps": (plots.bias_maps, {"bias": na.ALiBi(4)}, [
        ("bias", TypeError, {"bias": Forgetful()}), ("quantity", ValueError, {"quantity": "x"}),
        ("heads", ValueError, {"heads": [5]}), ("heads", TypeError, {"heads": 3}),
        ("heads x query_length x key_length", ValueError, {"query_length": 20_000}),
    ]),
    "plots.mask": (plots.mask, {"query_length": 4}, [
        ("window", ValueError, {"window": 0}),
        ("query_length x key_length", ValueError, {"query_length": 5000}),
    ]),
    "plots.block_mask": (plots.block_mask, {"mask": np.ones((1, 2, 3, 4), bool)}, [
        ("head", ValueError, {"head": 3}),
        ("mask", ValueError, {"mask": np.ones((1, 2, 0, 4), bool)}),
    ]),
    "plots.blocks": (plots.blocks, {"stats": stats()}, [
        ("batch", ValueError, {"batch": 1}), ("stats", TypeError, {"stats": np.ones(3)}),
    ]),
    "plots.accuracy_curves": (plots.accuracy_curves, {"summary": summary(), "task": "lines"}, [
        ("task", ValueError, {"task": "x"}), ("summary", TypeError, {"summary": 3}),
    ]),
    "plots.extrapolation_curves": (plots.extrapolation_curves, {"lengths": [1, 2]}, [
        ("values", ValueError, {"values": {"a": [1]}}),
    ]),
    "plots.exact_positions": (plots.exact_positions, {}, [
        ("shares", TypeError, {"shares": 3}, {"shares": {"a": 3}}),
    ]),
    "plots.rounded_positions": (plots.rounded_positions, {}, [
        ("rounded", ValueError, {"rounded": {"a": ([1], [1, 2])}}),
        ("rounded", TypeError, {"rounded": {"a": "b"}}),
    ]),
    "plots.alibi_rows": (plots.alibi_rows, {}, [
        ("rows", ValueError, {"rows": {}}), ("rows", TypeError, {"rows": {"a": 3}}),
    ]),
    "plots.attention_maps": (
        plots.attention_maps,
        {"model": random_model(), "tokenizer": Letters(), "text": "x"},
        [
            ("model", TypeError, {"model": "bloom"}, {"model": torch.nn.Linear(1, 1)}),
            ("tokenizer", TypeError, {"tokenizer": None}),
            ("text", TypeError, {"text": 3}), ("text", ValueError, {"text": "x" * 11586}),
            ("number of tokens of text", ValueError, {"text": ""}),
            ("layers", TypeError, {"layers": []}), ("layer", ValueError, {"layers": [2]}),
            ("heads", TypeError, {"heads": 3}),
            ("methods", TypeError, {"methods": "ntk:4"}), ("a method", TypeError, {"methods": [4]}),
            ("maps of methods x layers x heads", ValueError, {"methods": ["ntk:2"] * 65}),
        ],
    ),
}  # fmt: skip

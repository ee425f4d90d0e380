"""Wrong arguments: an error is one line, which begins with the argument's name and says what came.

`FUNCTIONS` has values that are wrong for one argument of a public function in any call. `REFUSED`
has values that contradict another argument, or that few functions take, and
`tests/plots/test_refusals.py` has those for pictures; `tests/test_advice.py` has the sentences that
say what to do instead.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fuzz.drawn.wrong_arguments import FUNCTIONS, Function
from fuzz.wrong_values import HOSTILE

import ntk_alibi as na
from ntk_alibi import inspection
from ntk_alibi.biases import BiasObject, KernelBias
from ntk_alibi.fused.gradients import attention_gradients
from ntk_alibi.torch import learned_bias
from refusals import LONGEST, Rows, Table, cases, check_line

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


def norms(*, key: Any) -> None:
    na.KeyNorms().update(KEY).update(key)


def sliced(index: Any) -> Any:
    return ROWS[index]


class Foreign(BiasObject):
    """A user's bias, which returns anything."""

    def __init__(self, *made: Any, **fields: Any) -> None:
        self.define(made=made[0] if made else KernelBias(**fields), num_heads=2, sides="symmetric")

    def kernel_bias(self, problem: Any, like: Any = None) -> Any:
        return self.made


class Returns:
    """A user's scaling, which returns anything."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def scale_exponents(self, exponents: Any, lengths: Any = None) -> Any:
        return self.result


ONE_OF_BOTH = np.ones((1, HEADS, 1), np.float32)

ATTENTION: Rows = [
    ("key", ValueError, {"query": TENSORS[0], "key": META[..., None, None]}),
    ("key", TypeError, {"query": TENSORS[0]}),
    ("head_dim", ValueError, of(QUERY[..., :0], KEY[..., :0])),
    ("query", ValueError, of(np.broadcast_to(HALF, (1, 1, 2**31, 1)), HALF)),
    ("key and value", TypeError, {"key": ROWS}),
    ("value", ValueError, {"key": ROWS, "value": ROWS[:, :, :2]}),
    ("key", TypeError, of(TENSORS[0], ROWS)),
    ("causal", ValueError, {"causal_block": 8, "causal": False}),
    ("causal", ValueError, {"rotary": na.XPOS(8), "causal": False}),
    ("bias", ValueError, {"bias": na.ALiBi(HEADS), "causal": False}),
    ("scale", ValueError, {"scale": -1e39}),
    ("scale", ValueError, {"scale": 1e-40}),
    ("scale", TypeError, {"scale": np.ma.masked}),
    ("scale", TypeError, {"scale": RECORDED[0, 0, 0, 0]}),
    ("mask", TypeError, {"mask": torch.ones(1, 1, QUERIES, KEYS) > 0}),
    ("mask", TypeError, {"mask": masked(np.ones((1, 1, QUERIES, KEYS), bool))}),
    ("key_padding_mask", TypeError, {"key_padding_mask": [[1] * KEYS]}),
    ("query_positions", ValueError, {"align": "start", "query_positions": np.arange(QUERIES)}),
    ("query_positions", TypeError, {"bias": KERPLE, "query_positions": LOG[0, 0]}),
    ("positions", ValueError, {"bias": KERPLE, "key_positions": [0, 1, 2, 3, 2**30]}),
    ("key_positions", ValueError, {"rotary": na.RoPE(8), "key_positions": np.arange(5) + 0.5}),
    # segments
    ("query_segment_ids", ValueError, {"segment_ids": IDS, "query_segment_ids": [1, 0, 1]}),
    ("query_segment_ids", ValueError, {"segment_ids": IDS, "query_segment_ids": IDS}),
    ("query_segment_ids", ValueError, of(KEY, QUERY, segment_ids=[0, 0, 1])),
    ("query_segment_ids", ValueError, {"bias": GATES, **FIRST_ONLY}),
    ("segment_ids", ValueError, {"query_segment_ids": IDS[:QUERIES]}),
    ("align", ValueError, {"segment_ids": IDS, "align": "start"}),
    ("key_positions", ValueError, {"segment_ids": IDS, "key_positions": [0, 1, 2, 4, 3]}),
    ("query_positions", ValueError, {**FIRST_ONLY, "key_positions": np.arange(KEYS)}),
    # results over other keys, and norms
    ("initial", TypeError, {"initial": [QUERY, LOG]}),
    ("initial", TypeError, {"initial": (TENSORS[0], LOG)}),
    ("initial", TypeError, {"initial": (QUERY, None)}),
    ("initial", TypeError, {"initial": (QUERY.astype("f2"), LOG)}),
    ("initial", TypeError, {"initial": (QUERY, LOG.astype("f2"))}),
    ("initial", TypeError, {"initial": (masked(QUERY), LOG)}),
    *(
        ("key_norms", ValueError, {"key_norms": NORMS, **others})
        for others in (
            {"rotary": na.RoPE(8)}, {"key_padding_mask": np.ones((1, KEYS))}, {"segment_ids": IDS},
            {"bias": na.ALiBi(HEADS, exempt=1)},
        )
    ),
    ("key_norms", TypeError, of(QUERY.astype("f2"), KEY.astype("f2"), key_norms=NORMS)),
    ("seed", ValueError, {"dropout": 0.1}),
    # biases, as far as a call checks them
    ("bias", TypeError, {"bias": torch.eye(3).to_sparse()}),
    ("bias", TypeError, {"bias": masked(np.eye(KEYS)[:QUERIES])}),
    ("bias", TypeError, {"bias": na.ALiBi}),
    ("bias", ValueError, {"bias": na.KerpleLog([1e300] * 2, 1.0)}),
    ("kernel_bias", TypeError, {"bias": Foreign(3)}),
    ("kernel_bias", ValueError, {"bias": Foreign(left=ONE_OF_BOTH, table=ONE_OF_BOTH[0])}),
    ("slopes", ValueError, {"bias": Foreign(left=ONE_OF_BOTH[:, :1], right=ONE_OF_BOTH)}),
    ("sums", ValueError, {"bias": Foreign(sums=ONE_OF_BOTH)}),
    ("log_gates", ValueError, {"bias": na.ForgetGates(np.full((1, HEADS, KEYS), -INF))}),
    ("log_gates", ValueError, {"bias": na.ForgetGates(np.full((1, HEADS, KEYS), -1e9))}),
    ("query_positions", ValueError, {"bias": GATES, "query_positions": np.arange(QUERIES)}),
    ("query_positions", ValueError, {"bias": GATES, "align": "start"}),
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

REFUSED: Table = {
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
        ("outputs", TypeError, {"outputs": torch.ones(2, 1)}),
        ("outputs", TypeError, {"outputs": [masked(QUERY)]}),
        ("outputs", TypeError, {"outputs": [QUERY, TENSORS[0]], "logsumexps": [LOG, LOG]}),
        ("out", TypeError, {"out": QUERY}),
        ("out", ValueError, {
            "outputs": [RECORDED], "logsumexps": [RECORDED[..., 0]],
            "out": (TENSORS[0], TENSORS[0][..., 0]),
        }),
    ]),
    "KeyNorms.update, again": (norms, {"key": KEY}, [
        ("key", ValueError, {"key": KEY[:, :, :2]}),
        ("key", ValueError, {"key": KEY[:, :1]}),
        ("key", ValueError, {"key": KEY[..., :4]}),
        ("key", TypeError, {"key": KEY.astype("f2")}),
    ]),
    "QuantizedRows": (na.QuantizedRows, vars(ROWS), [
        ("numbers", TypeError, {"numbers": KEY}),  # codespell:ignore
        ("scales", TypeError, {"scales": [1.0]}),
    ]),
    "an index": (sliced, {}, [
        ("an index of QuantizedRows", IndexError, {"index": (..., slice(1))}),
    ]),
    "MaxBias.max_alibi_bias": (na.MaxBias(4.0).max_alibi_bias, {"num_heads": 8}, [
        ("num_heads", ValueError, {"num_heads": 0}),
        ("base", ValueError, {"base": -8.0}),
        ("base", TypeError, {"base": "8"}),
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
        ("lengths", ValueError, {"scaling": na.DynamicNTK(), "lengths": None}),
        ("lengths", ValueError, {"scaling": na.DynamicNTK(), "lengths": 5}),
        ("lengths", ValueError, {"scaling": na.DynamicNTK(), "lengths": [[5]]}),
        ("train_length", ValueError, {"scaling": na.DynamicNTK(), "lengths": [3]}),
        *(
            ("scale_exponents", ValueError, {"scaling": Returns(x)})
            for x in (np.zeros(3), np.zeros((2, 3)), np.zeros(()), np.full(4, np.nan))
        ),
    ]),
    "ALiBi": (na.ALiBi, {"num_heads": 2}, [
        ("slopes", ValueError, {"sides": "two_slopes"}),
        *(
            ("slopes", ValueError, {"slopes": (np.ones(2), np.ones(2)), "sides": sides})
            for sides in ("causal", "symmetric", "halves")
        ),
        ("slopes", ValueError, {"slopes": (np.ones(2), np.ones(3)), "sides": "two_slopes"}),
        ("scaling", ValueError, {"scaling": na.NTK(2.0), "slopes": np.ones(2)}),
    ]),
    "ALiBi.tensor": (na.ALiBi(4, na.DynamicNTK()).tensor, {"query_length": 2, "key_length": 2}, [
        ("dtype", TypeError, {"dtype": np.float64}),
        ("out", TypeError, {"out": np.empty((1, 4, 2, 2), ">f4")}),
        ("lengths", ValueError, {"lengths": [3]}),
    ]),
    "tensor of learned parameters": (na.KerplePower(LEARNED, 1.0).tensor, {"query_length": 2}, [
        ("a parameter of the bias", ValueError, {"key_length": 2}),
    ]),
    "tensor of gates": (GATES.tensor, {"query_length": KEYS + 1}, [
        ("query", ValueError, {"key_length": KEYS}),
    ]),
    "biases": (lambda make: make(), {}, [
        (name, error, {"make": make})
        for name, error, make in (
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
    "scaling_from_config": (lambda **config: na.scaling_from_config(config), {}, [
        ("config", ValueError, {"alibi_type": "ntk", "factor": 2.0, "rate": 1}),
        ("config", ValueError, {"alibi_type": "ntk"}),
        ("config", ValueError, {"type": "linear"}),
        ("config", ValueError, {"type": "linear", "factor": 2, "train_seq_len": 9}),
        ("config", ValueError, {"type": "linear", "scale": 2}),
        ("type", ValueError, {"type": "ntk", "factor": 2}),
        ("config", ValueError, {"alibi_type": "ntk", "type": "linear", "factor": 2}),
    ]),
    "RoPE(2).stretched": (na.RoPE(2).stretched, {}, [
        ("scaling", ValueError, {"scaling": na.NTK(2.0)}),
    ]),
    "LogN": (na.LogN, {"train_length": 8}, [("strength", ValueError, {"strength": (1.0, 1e37)})]),
    "AlibiAttention": (na.AlibiAttention, {"num_heads": 6, "embed_dim": 48}, [
        ("scaling", ValueError, {"slopes": 1.0, "scaling": na.NTK(2.0)}),
        ("bias", ValueError, {"slopes": 1.0, "bias": torch.zeros(6, 2, 2)}),
    ]),
    "bias_by_distance": (inspection.bias_by_distance, {"bias": na.ALiBi(2), "longest": 4}, [
        ("bias", TypeError, {"bias": 3}),
        ("longest", ValueError, {"longest": 0}),
        ("side", ValueError, {"side": "left"}),
    ]),
    "inspection.receptive_field": (inspection.receptive_field, {"bias": na.ALiBi(2)}, [
        ("share", ValueError, {"share": 1.0}),
        ("share", ValueError, {"share": 0.0}),
        ("share", TypeError, {"share": "1/e"}),
    ]),
    "inspection.weights": (inspection.weights, {"query_length": 4}, [
        ("query_length", ValueError, {"query_length": 0}),
        ("window", ValueError, {"window": 0}),
    ]),
    "precision.alibi_row": (na.precision.alibi_row, PATH, [
        ("slope", ValueError, {"slope": -1}),
        ("length", ValueError, {"length": 0}),
        ("form", ValueError, {"form": "last"}),
    ]),
    "precision.last_positions": (na.precision.last_positions, {"dtype": "bfloat16", "window": 9}, [
        ("count", ValueError, {"count": 0}),
    ]),
}  # fmt: skip


@pytest.mark.parametrize(("function", "given", "argument", "error"), cases(REFUSED))
def test_a_contradiction_is_refused(
    function: Any, given: dict[str, Any], argument: str, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        function(**given)
    check_line(caught.value, argument)


def of_tensors(attention: Function) -> list[Function]:
    """Return attention of tensors that torch records, which has other ways of computing."""
    inputs = ("query", "key", "value")
    wrong = {name: values for name, values in attention.wrong.items() if name not in inputs}
    return [
        replace(
            attention,
            name=f"attention of {dtype}",
            right={
                x: torch.tensor(attention.right[x], dtype=dtype, requires_grad=True) for x in inputs
            },
            wrong=wrong,
        )
        for dtype in (torch.float32, torch.float64)
    ]


@pytest.mark.parametrize("function", [*FUNCTIONS, *of_tensors(FUNCTIONS[0])], ids=lambda x: x.name)
def test_a_wrong_value_is_refused(function: Function) -> None:
    function.call(**function.right)
    for argument, values in function.wrong.items():
        for value in values:
            with pytest.raises((TypeError, ValueError)) as caught:
                function.call(**function.right | {argument: value})
            check_line(caught.value, argument, *function.also.get(argument, ()))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda x: x.name)
def test_a_hostile_value_is_taken_or_gets_a_line(function: Function) -> None:
    """Such as integers of 5,000 digits, and what describes itself in several lines."""
    for argument, value in itertools.product(function.wrong, HOSTILE):
        line = "taken"
        try:
            function.call(**function.right | {argument: value})
        except (TypeError, ValueError) as error:
            line = str(error)
        assert line.isprintable()
        assert len(line) <= LONGEST

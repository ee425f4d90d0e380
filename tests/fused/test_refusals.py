"""Error messages for wrong arguments of attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from attention_checks import inputs
from ntk_alibi.fused.gradients import attention_gradients

QUERY, KEY, VALUE = inputs(1, 4, 2, 3, 5, 8)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (([[1.0]], KEY, VALUE), {}, TypeError, "query must be a NumPy array or a torch tensor"),
        ((QUERY[0], KEY, VALUE), {}, ValueError, "query must have shape"),
        ((QUERY, KEY, VALUE[:, :, 1:]), {}, ValueError, "value must have key's shape"),
        ((QUERY, KEY[..., 1:], VALUE[..., 1:]), {}, ValueError, "head_dim 8 as query"),
        ((QUERY[:, :3], KEY, VALUE), {}, ValueError, "a multiple of key's 2 heads, got 3"),
        (
            (QUERY, KEY.astype(np.float16), VALUE),
            {},
            TypeError,
            "a NumPy array of float32",
        ),
        ((QUERY.astype(float), KEY.astype(float), VALUE.astype(float)), {}, TypeError, "float64"),
        (
            (QUERY[..., :0], KEY[..., :0], VALUE[..., :0]),
            {},
            ValueError,
            "head_dim must be between",
        ),
        ((QUERY, KEY, VALUE, na.ALiBi(3)), {}, ValueError, "bias must have query's 4 heads"),
        ((QUERY, KEY, VALUE, na.ALiBi(4)), {"causal": False}, ValueError, "causal must be True"),
        ((QUERY, KEY, VALUE, np.ones((2, 5))), {}, ValueError, "bias must be broadcastable"),
        ((QUERY, KEY, VALUE, np.ones(5, int)), {}, TypeError, "bias must be floating"),
        ((QUERY, KEY, VALUE, "alibi"), {}, TypeError, "bias must be None, a bias object"),
        (
            (QUERY, KEY, VALUE),
            {"causal": "no"},
            TypeError,
            "causal must be True or False, got 'no'",
        ),
        (
            (QUERY, KEY, VALUE, na.ALiBi(4, slopes=np.ones((3, 4), np.float32))),
            {},
            ValueError,
            "slopes must be for 1 row or the batch of 1, got 3",
        ),
        ((QUERY, KEY, VALUE), {"window": 0}, ValueError, "window must be between 1"),
        ((QUERY, KEY, VALUE), {"causal_block": 0}, ValueError, "causal_block must be between 1"),
        (
            (QUERY, KEY, VALUE),
            {"causal_block": 8, "causal": False},
            ValueError,
            "causal must be True with causal_block, got causal_block=8",
        ),
        ((QUERY, KEY, VALUE), {"sink": -1}, ValueError, "sink must be between 0"),
        ((QUERY, KEY, VALUE), {"is_causal": True}, TypeError, "'is_causal': pass causal, which is"),
        ((QUERY, KEY, VALUE), {"attn_mask": None}, TypeError, "as bias, .* as key_padding_mask"),
        ((QUERY, KEY, VALUE), {"dropout_p": 0.0}, TypeError, "the fused kernel has no dropout"),
        ((QUERY, KEY, VALUE), {"enable_gqa": True}, TypeError, "always have fewer heads"),
        (
            (QUERY, KEY, VALUE),
            {"softcap": 1.0},
            TypeError,
            "unexpected keyword argument 'softcap'$",
        ),
        ((QUERY, KEY, VALUE), {"dropout": 0.1}, ValueError, "dropout must be 0 .*eager"),
        ((QUERY, KEY, VALUE), {"dropout": "no"}, TypeError, "dropout must be a number, got 'no'"),
        ((QUERY, KEY, VALUE), {"scale": np.inf}, ValueError, "scale must be a finite number"),
        ((QUERY, KEY, VALUE), {"skip_tolerance": 1}, ValueError, "skip_tolerance must be below 1"),
        (
            (QUERY, KEY, VALUE),
            {"skip_tolerance": -1},
            ValueError,
            "skip_tolerance must be a finite",
        ),
        (
            (QUERY, KEY, VALUE),
            {"key_padding_mask": np.ones((1, 4))},
            ValueError,
            "key_padding_mask must have shape",
        ),
        (
            (QUERY, KEY, VALUE),
            {"key_padding_mask": np.full((1, 5), 2)},
            ValueError,
            "key_padding_mask must hold only 0 and 1",
        ),
        ((QUERY, KEY, VALUE), {"key_positions": np.arange(4)}, ValueError, "key_positions must"),
        ((QUERY, KEY, VALUE), {"key_positions": np.ones(5)}, TypeError, "must be integers"),
        ((QUERY, KEY, VALUE), {"query_positions": [-1, 0, 1]}, ValueError, "between 0 and"),
        (
            (QUERY, KEY[:, :, :1], VALUE[:, :, :1]),
            {"key_positions": [0]},
            ValueError,
            "query_positions must be given",
        ),
    ],
)
def test_bad_input(
    arguments: tuple[Any, ...], options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        na.attention(*arguments, **options)


def test_merge_refuses_parts_that_do_not_fit() -> None:
    output, log = na.attention(QUERY, KEY, VALUE, return_logsumexp=True)
    for outputs, logs in (([], []), ([output], []), ([output], [log[:, :2]])):
        with pytest.raises(ValueError, match="must"):
            na.merge(outputs, logs)


A, ARRAY = np.ones(2), np.ones((2, 4, 3, 8), np.float32)
FOUR = np.ones(4, np.float32)
RESULTS = (ARRAY, ARRAY[..., 0], ARRAY)

WRONG: dict[str, tuple[Any, str]] = {
    "align": (lambda: na.attention(ARRAY, ARRAY, ARRAY, align=A), "align must be one of"),
    "dropout": (lambda: na.attention(ARRAY, ARRAY, ARRAY, dropout=A), "dropout must be a number"),
    "dropout of torch": (
        lambda: na.attention(ARRAY, ARRAY, ARRAY, dropout=torch.ones(3)),
        "dropout must be a number",
    ),
    "class": (lambda: na.attention(ARRAY, ARRAY, ARRAY, na.ALiBi), "bias must be None, a bias"),
    "stretch": (lambda: na.RoPE(8).stretched(na.NTK), "scaling must be an Interpolation"),
    "no output": (
        lambda: attention_gradients(ARRAY, ARRAY, ARRAY, None, *RESULTS[1:]),
        "output must be a NumPy array",
    ),
    "complex logsumexp": (
        lambda: attention_gradients(ARRAY, ARRAY, ARRAY, ARRAY, ARRAY[..., 0] * 1j, ARRAY),
        "dtype of logsumexp must be one of",
    ),
    "complex parameter": (
        lambda: na.BiALiBi(FOUR, FOUR, FOUR * 1j),
        "right must hold real numbers",
    ),
    "text": (lambda: na.T5([["1"] * 32]), "values must hold real numbers"),
    "integers": (lambda: na.KeyNorms().update(ARRAY.astype(int)), "dtype of key must be one of"),
    "rotated integers": (lambda: na.RoPE(8).rotate(ARRAY.astype(int)), "dtype of x must be one of"),
    "out": (lambda: na.ALiBi(4).tensor(2, 3, out=3), "out must be a NumPy array"),
    "dtype of out": (
        lambda: na.ALiBi(4).tensor(2, 3, out=np.empty((1, 4, 2, 3))),
        "dtype of out must be one of",
    ),
    "no parts": (lambda: na.merge(None, None), "outputs must be a list"),
    "parts": (lambda: na.merge([None], [ARRAY]), "outputs must be a list"),
    "stacked parts": (lambda: na.merge(torch.ones(2, 1), [ARRAY]), "outputs must be a list"),
    "no dtype": (lambda: na.build_alibi_tensor(np.ones((1, 2)), 4, None), "dtype must be one of"),
    "meta": (
        lambda: na.attention(ARRAY, ARRAY, ARRAY, query_positions=torch.ones(3, device="meta")),
        "query_positions must be a tensor with numbers",
    ),
    "sparse": (
        lambda: na.attention(ARRAY, ARRAY, ARRAY, torch.eye(3).to_sparse()),
        "bias must be a dense tensor",
    ),
    "sparse parameter": (
        lambda: na.DistanceTable(torch.eye(4).to_sparse()),
        "table must be a dense tensor",
    ),
    "meta mask": (
        lambda: na.attention(
            *[torch.ones(2, 4, 3, 8, requires_grad=True)] * 3,
            key_padding_mask=torch.ones(2, 3, device="meta"),
        ),
        "key_padding_mask must be a tensor with numbers",
    ),
    "meta table": (
        lambda: na.attention(
            *[torch.ones(2, 4, 3, 8, requires_grad=True)] * 3,
            na.DistanceTable(torch.ones(4, 3, device="meta")),
        ),
        "a parameter of the bias must be a tensor with numbers",
    ),
    "masked scale": (
        lambda: na.attention(ARRAY, ARRAY, ARRAY, scale=np.ma.masked),
        "scale must be a number",
    ),
    "scale with gradient": (
        lambda: na.attention(ARRAY, ARRAY, ARRAY, scale=torch.tensor(1.0, requires_grad=True)),
        "scale must be a number",
    ),
}


@pytest.mark.parametrize(("call", "message"), WRONG.values(), ids=WRONG)
def test_messages_name_the_argument(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


ROWS = na.QuantizedRows.of(ARRAY)
RECORDED = torch.ones(2, 4, 3, 8, requires_grad=True)
NORMS = na.KeyNorms().update(ARRAY)
LOG = ARRAY[..., 0]


def attend(**options: Any) -> Any:
    return na.attention(ARRAY, ARRAY, ARRAY, **options)


def gradients(output: Any, log: Any, of_output: Any, of_log: Any = None) -> Any:
    return attention_gradients(ARRAY, ARRAY, ARRAY, output, log, of_output, of_log)


#: What is called, the class of its error, and words of the message.
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "rotary": (lambda: attend(rotary=8), TypeError, "rotary must be None, a RoPE or an XPOS"),
    "rotary class": (lambda: attend(rotary=na.RoPE), TypeError, "rotary must be None, a RoPE"),
    "rotary of others": (
        lambda: attend(rotary=na.RoPE(4)),
        ValueError,
        "rotary must have query's head_dim 8, got RoPE",
    ),
    "xpos": (
        lambda: attend(rotary=na.XPOS(8), causal=False),
        ValueError,
        "causal must be True with XPOS, which grows ahead, got XPOS",
    ),
    "norms and rotary": (
        lambda: attend(rotary=na.RoPE(8), key_norms=NORMS),
        ValueError,
        "key_norms must be None when rotary is given",
    ),
    "initial": (
        lambda: attend(initial=[ARRAY, LOG]),
        TypeError,
        r"initial must be a pair \(output, logsumexp\), got \[",
    ),
    "framework of initial": (
        lambda: attend(initial=(torch.ones(2, 4, 3, 8), LOG)),
        TypeError,
        "the output of initial must be of query's framework, got Tensor",
    ),
    "shape of initial": (
        lambda: attend(initial=(ARRAY, LOG[:1])),
        ValueError,
        r"the logsumexp of initial must have shape \(2, 4, 3\), got \(1, 4, 3\)",
    ),
    "dtype of initial": (
        lambda: attend(initial=(ARRAY.astype(np.float16), LOG)),
        TypeError,
        "the output of initial must be of query's float32, got float16",
    ),
    "log of initial": (
        lambda: attend(initial=(ARRAY, LOG.astype(np.float16))),
        TypeError,
        "dtype of the logsumexp of initial must be one of float32, float64, got float16",
    ),
    "masked initial": (
        lambda: attend(initial=(np.ma.masked_array(ARRAY), LOG)),
        TypeError,
        "the output of initial must not be a masked array",
    ),
    "norms": (lambda: attend(key_norms=3), TypeError, "key_norms must be None or a KeyNorms"),
    "norms and padding": (
        lambda: attend(key_norms=NORMS, key_padding_mask=np.ones((2, 3))),
        ValueError,
        "key_norms must be None with key_padding_mask or key_positions",
    ),
    "norms of others": (
        lambda: attend(key_norms=na.KeyNorms().update(ARRAY[:, :, :2])),
        ValueError,
        r"key_norms must be of key's \(batch, heads, keys\) \(2, 4, 3\), got \(2, 4, 2\)",
    ),
    "norms of channels": (
        lambda: attend(key_norms=na.KeyNorms().update(ARRAY[..., :4])),
        ValueError,
        "key_norms must be of key's head_dim 8, got 4",
    ),
    "fewer keys": (
        lambda: na.KeyNorms().update(ARRAY).update(ARRAY[:, :, :2]),
        ValueError,
        "key must have at least 3 keys as before, got 2",
    ),
    "other heads": (
        lambda: na.KeyNorms().update(ARRAY).update(ARRAY[:, :2]),
        ValueError,
        r"key must have \(batch, heads\) \(2, 4\) as before, got \(2, 2\)",
    ),
    "other channels": (
        lambda: na.KeyNorms().update(ARRAY).update(ARRAY[..., :4]),
        ValueError,
        "key must have head_dim 8 as before, got 4",
    ),
    "one quantized": (
        lambda: na.attention(ARRAY, ROWS, ARRAY),
        TypeError,
        "key and value must both be QuantizedRows or both be arrays, got a value of type ndarray",
    ),
    "quantized of arrays": (
        lambda: na.attention(torch.ones(2, 4, 3, 8), ROWS, ROWS),
        TypeError,
        "key must be of query's framework, got",
    ),
    "quantized where recorded": (
        lambda: na.attention(RECORDED, ROWS, ROWS),
        ValueError,
        "a quantized key or value is for calls that torch neither records nor traces: use torch.no",
    ),
    "norms where recorded": (
        lambda: na.attention(RECORDED, RECORDED, RECORDED, key_norms=NORMS),
        ValueError,
        "key_norms is for calls that torch neither",
    ),
    "stats where recorded": (
        lambda: na.attention(RECORDED, RECORDED, RECORDED, return_stats=True),
        ValueError,
        "return_stats is for calls that torch neither",
    ),
    "scales": (
        lambda: na.QuantizedRows(ROWS.numbers, [1.0]),
        TypeError,
        "scales must be of numbers' framework, got list",
    ),
    "dtype of numbers": (
        lambda: na.QuantizedRows(ARRAY, LOG),
        TypeError,
        "numbers must be of native int8, got float32",
    ),
    "shape of scales": (
        lambda: na.QuantizedRows(ROWS.numbers, LOG[:1]),
        ValueError,
        r"scales must have shape \(2, 4, 3\), got \(1, 4, 3\)",
    ),
    "index of channels": (
        lambda: ROWS[..., :1],
        IndexError,
        "an index of QuantizedRows must be of batch, heads, tokens, got",
    ),
    "quantized sum": (lambda: np.sum(ROWS), TypeError, "the argument must be an array or a tensor"),
    "quantized tensor sum": (
        lambda: torch.sum(ROWS),  # type: ignore[call-overload]
        TypeError,
        "the argument must be an array or a tensor, got .*: pass its dequantized",
    ),
    "rows to quantize": (
        lambda: na.QuantizedRows.of(ARRAY.astype(int)),
        TypeError,
        "dtype of x must be one of float32",
    ),
    "shape of the output": (
        lambda: gradients(ARRAY[:1], LOG, ARRAY),
        ValueError,
        r"output must have shape \(2, 4, 3, 8\), got \(1, 4, 3, 8\)",
    ),
    "dtype of the gradient": (
        lambda: gradients(ARRAY, LOG, ARRAY.astype(np.float16)),
        TypeError,
        "output_gradient must be of query's dtype float32, got float16",
    ),
    "gradient of logs": (
        lambda: gradients(ARRAY, LOG, ARRAY, LOG[:1]),
        ValueError,
        r"logsumexp_gradient must have shape \(2, 4, 3\), got",
    ),
    "rounded logs": (
        lambda: gradients(ARRAY, LOG * 1e6, ARRAY),
        ValueError,
        "logsumexp must be float64, or that of the same call, beyond 16384: float32 rounds it by",
    ),
}


@pytest.mark.parametrize(("call", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refusals(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_float16_overflows_without_a_warning() -> None:
    query = np.full((1, 1, 1, 1), 0.2, np.float16)
    key = np.array([1, -1], np.float16).reshape(1, 1, 2, 1)
    results = na.attention(query, key, key * 3e4, log_n=2, return_logsumexp=True)
    got = attention_gradients(query, key, key * 3e4, *results, query, log_n=2, scale=400.0)
    assert not np.isnan(got.query).any()


def test_more_queries_than_positions_are_refused() -> None:
    """Positions of such queries had wrapped."""
    query = np.broadcast_to(np.float16(1), (1, 1, 2**31, 1))
    key = np.ones((1, 1, 1, 1), np.float16)
    with pytest.raises(ValueError, match="query length must be between 0 and 2147483647"):
        na.attention(query, key, key)

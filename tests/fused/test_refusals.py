"""Error messages for wrong arguments of attention, its gradients, `merge`, norms and rows.

`tests/biases` and `tests/positions` test the errors of biases, rotations and log-n scaling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from attention_checks import inputs
from ntk_alibi.fused.gradients import attention_gradients

QUERY, KEY, VALUE = inputs(1, 4, 2, 3, 5, 8)
ARRAY = np.ones((2, 4, 3, 8), np.float32)
LOG = ARRAY[..., 0]
ROWS = na.QuantizedRows.of(ARRAY)
TENSOR = torch.ones(2, 4, 3, 8)
RECORDED = torch.ones(2, 4, 3, 8, requires_grad=True)
NORMS = na.KeyNorms().update(ARRAY)
META = torch.ones(2, 3, device="meta")


def call(query: Any = QUERY, key: Any = KEY, value: Any = VALUE, *bias: Any, **options: Any) -> Any:
    return na.attention(query, key, value, *bias, **options)


def like(*bias: Any, **options: Any) -> Any:
    return na.attention(ARRAY, ARRAY, ARRAY, *bias, **options)


def recorded(*bias: Any, **options: Any) -> Any:
    return na.attention(RECORDED, RECORDED, RECORDED, *bias, **options)


def gradients(output: Any, log: Any, of_output: Any, of_log: Any = None) -> Any:
    return attention_gradients(ARRAY, ARRAY, ARRAY, output, log, of_output, of_log)


def norms(*keys: Any) -> Any:
    kept = na.KeyNorms()
    for key in keys:
        kept.update(key)
    return kept


def rows_need_grad() -> Any:
    scales = torch.ones(2, 4, 3, requires_grad=True)
    return na.QuantizedRows(torch.ones(2, 4, 3, 8, dtype=torch.int8), scales)


def autocast_rows() -> None:
    with torch.autocast("cpu"):
        rows = na.QuantizedRows.of(TENSOR)
        na.attention(TENSOR, rows, rows)


def masked(array: Any) -> Any:
    return np.ma.masked_array(array, array > 1)


#: What is called, the class of its error, and words of the message.
REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    # query, key, value
    (lambda: call([[1.0]]), TypeError, "query must be a NumPy array or a torch tensor, got list$"),
    (lambda: call(QUERY[0]), ValueError, "query must have shape"),
    (lambda: call(value=VALUE[:, :, 1:]), ValueError, "value must have key's shape"),
    (lambda: call(QUERY, KEY[..., 1:], VALUE[..., 1:]), ValueError, "head_dim 8 as query"),
    (lambda: call(QUERY[:, :3]), ValueError, "a multiple of key's 2 heads, got 3"),
    (lambda: call(key=KEY.astype("f2")), TypeError, "key must be a NumPy array of float32 as quer"),
    (lambda: call(torch.ones(1, 4, 3, 8)), TypeError, "key must be a tensor of torch.float32 as"),
    (
        lambda: call(QUERY.astype(float), KEY.astype(float), VALUE.astype(float)),
        TypeError,
        r"query must be of a dtype of float32, .* float64.*astype\(numpy.float32\).*reference",
    ),
    (lambda: call(*(x[..., :0] for x in (QUERY, KEY, VALUE))), ValueError, "head_dim must be betw"),
    (lambda: call(masked(QUERY)), TypeError, "query must not be masked"),
    # values and words
    (lambda: call(causal="no"), TypeError, "causal must be True or False, got 'no'"),
    (lambda: call(window=0), ValueError, "window must be between 1"),
    (lambda: call(causal_block=0), ValueError, "causal_block must be between 1"),
    (
        lambda: call(causal_block=8, causal=False),
        ValueError,
        "with causal_block, got causal_",
    ),
    (lambda: call(sink=-1), ValueError, "sink must be between 0"),
    (lambda: call(sink=2), ValueError, "sink must be 0 without window or causal_block, got 2"),
    (lambda: call(sink=2, causal=False), ValueError, "sink must be 0 without window or causal_blo"),
    (lambda: like(align=np.ones(2)), ValueError, "align must be one of"),
    (lambda: call(scale=np.inf), ValueError, "scale must be a finite number"),
    (lambda: call(scale=-1e39), ValueError, "scale must be 0 or within float32's range"),
    (lambda: call(scale=1e-40), ValueError, "scale must be 0 or within float32's range"),
    (lambda: like(scale=np.ma.masked), TypeError, "scale must be a number"),
    (lambda: like(scale=RECORDED[0, 0, 0, 0]), TypeError, "scale must be a number"),
    (lambda: call(skip_tolerance=1), ValueError, "skip_tolerance must be below 1"),
    (lambda: call(skip_tolerance=-1), ValueError, "skip_tolerance must be a finite"),
    (lambda: call(is_causal=True), TypeError, "'is_causal': pass causal, which is"),
    (lambda: call(attn_mask=None), TypeError, "as bias, .* as key_padding_mask"),
    (lambda: call(dropout_p=0.0), TypeError, "pass dropout, and a seed with arrays"),
    (lambda: call(enable_gqa=True), TypeError, "always have fewer heads"),
    (lambda: call(softcaps=1.0), TypeError, "unexpected keyword argument 'softcaps'$"),
    (lambda: call(softcap=1.0), TypeError, "'softcap': leave it out, because scores are not cap"),
    (lambda: call(window_size=(7, 0)), TypeError, r"pass window, .* itself: window_size\[0\] \+ 1"),
    (lambda: call(cu_seqlens_q=KEY), TypeError, "segment_ids=na.segment_ids_from_cu_seqlens"),
    (lambda: call(alibi_slopes=KEY), TypeError, "pass bias=na.ALiBi.num_heads, slopes=alibi_slop"),
    (lambda: call(causal_=1, softmax_scale=1), TypeError, "'softmax_scale': pass scale$"),
    (lambda: call(return_attn_probs=True), TypeError, "pass return_logsumexp for the logsumexp"),
    (lambda: call(dropout="no"), TypeError, "dropout must be a number, got 'no'"),
    (lambda: like(dropout=np.ones(2)), TypeError, "dropout must be a number"),
    (lambda: like(dropout=torch.ones(3)), TypeError, "dropout must be a number"),
    # padding, positions, bias
    (lambda: call(key_padding_mask=np.ones((1, 4))), ValueError, "key_padding_mask must have shap"),
    (lambda: call(key_padding_mask=np.full((1, 5), 2)), ValueError, "must hold only 0 and 1"),
    (lambda: call(mask=torch.ones(1, 1, 3, 5) > 0), TypeError, "mask must be a NumPy array as"),
    (lambda: call(key_padding_mask=[[1] * 5]), TypeError, "_mask must be a NumPy .*, got list$"),
    (lambda: call(key_padding_mask=masked(np.ones((1, 5)))), TypeError, "not be masked"),
    (lambda: recorded(key_padding_mask=META), TypeError, "_mask must be a tensor with values"),
    (lambda: call(key_positions=np.arange(4)), ValueError, "key_positions must"),
    (lambda: call(key_positions=np.ones(5)), TypeError, "must be integers"),
    (lambda: call(query_positions=[-1, 0, 1]), ValueError, "between 0 and"),
    (lambda: like(query_positions=META[0]), TypeError, "query_positions must be a tensor with val"),
    (
        lambda: call(QUERY, KEY[:, :, :1], VALUE[:, :, :1], key_positions=[0]),
        ValueError,
        "query_positions must be given",
    ),
    (lambda: like(torch.eye(3).to_sparse()), TypeError, "bias must be a dense tensor"),
    (lambda: like(masked(np.eye(3))), TypeError, "bias must not be masked"),
    (
        lambda: recorded(na.DistanceTable(META[[0, 0, 0, 0]])),
        TypeError,
        "parameter of the bias must be a tensor w",
    ),
    # results over other keys
    (lambda: like(initial=[ARRAY, LOG]), TypeError, r"initial must be a pair \(.*\), got a list"),
    (lambda: like(initial=ARRAY), TypeError, "initial must be a pair"),
    (lambda: like(initial=(TENSOR, LOG)), TypeError, "output of initial must be of query's framew"),
    (lambda: like(initial=(ARRAY, None)), TypeError, "logsumexp of initial must be of query's fra"),
    (lambda: like(initial=(ARRAY[:1], LOG)), ValueError, r"output .* \(2, 4, 3, 8\), got \(1, 4, "),
    (lambda: like(initial=(ARRAY, LOG[:1])), ValueError, r"logsumexp .* \(2, 4, 3\), got \(1, 4, "),
    (lambda: like(initial=(ARRAY.astype("f2"), LOG)), TypeError, "query's float32, got float16"),
    (lambda: like(initial=(ARRAY, LOG.astype("f2"))), TypeError, "one of float32, float64, got fl"),
    (lambda: like(initial=(masked(ARRAY), LOG)), TypeError, "output of initial must not be masked"),
    # norms of keys
    (lambda: like(key_norms=3), TypeError, "key_norms must be None or a KeyNorms, got 3"),
    (lambda: like(rotary=na.RoPE(8), key_norms=NORMS), ValueError, "None when rotary is given"),
    (
        lambda: like(key_norms=NORMS, key_padding_mask=np.ones((2, 3))),
        ValueError,
        "key_norms must be None with key_padding_mask or key_positions",
    ),
    (lambda: like(key_norms=norms(ARRAY[:, :, :2])), ValueError, r"s\) \(2, 4, 3\), got \(2, 4, 2"),
    (lambda: like(key_norms=norms(ARRAY[..., :4])), ValueError, "of key's head_dim 8, got 4"),
    (lambda: norms(ARRAY, ARRAY[:, :, :2]), ValueError, "key must have at least 3 keys as before"),
    (lambda: norms(ARRAY, ARRAY[:, :2]), ValueError, r"heads\) \(2, 4\) as before, got \(2, 2\)"),
    (lambda: norms(ARRAY, ARRAY[..., :4]), ValueError, "key must have head_dim 8 as before, got 4"),
    (lambda: norms(ARRAY.astype(int)), TypeError, "dtype of key must be one of"),
    # quantized rows
    (lambda: call(ARRAY, ROWS, ARRAY), TypeError, "must both be .*, got a value of type ndarray"),
    (lambda: call(TENSOR, ROWS, ROWS), TypeError, "key must be of query's framework, got"),
    (lambda: call(ARRAY.astype(float), ROWS, ROWS), TypeError, "query must be of a dtype of float"),
    (lambda: call(ARRAY, ROWS, ROWS[:, :, :2]), ValueError, "value must have key's shape"),
    (lambda: na.QuantizedRows(ARRAY, LOG), TypeError, "must be of native int8, got float3"),
    (lambda: na.QuantizedRows(ROWS.numbers, [1.0]), TypeError, "' framework, got list"),
    (lambda: na.QuantizedRows(ROWS.numbers, TENSOR), TypeError, "' framework, got Tensor"),
    (lambda: na.QuantizedRows(ROWS.numbers, LOG[:1]), ValueError, r"scales .*, got \(1, 4, 3\)"),
    (lambda: na.QuantizedRows.of(ARRAY.astype(int)), TypeError, "dtype of x must be one of float3"),
    (lambda: ROWS[..., :1], IndexError, "index of QuantizedRows must be of batch, heads, tokens"),
    (lambda: np.add(ROWS, 1), TypeError, "the argument must be an array or a tensor"),
    (lambda: torch.cat([ROWS, ROWS]), TypeError, "an array or a tensor, got .*: pass its dequan"),  # type: ignore[list-item]
    (lambda: attention_gradients(ARRAY, ROWS, ROWS, ARRAY, LOG, ARRAY), TypeError, "key must be a"),  # type: ignore[arg-type]
    # where torch records or casts
    (lambda: call(RECORDED, ROWS, ROWS), ValueError, "a quantized key or value is .*: use torch.n"),
    (lambda: call(TENSOR, *[rows_need_grad()] * 2), ValueError, "a quantized key or value is for"),
    (autocast_rows, ValueError, "a quantized key or value is for calls that torch neither"),
    (lambda: recorded(key_norms=NORMS), ValueError, "key_norms is for calls that torch neither"),
    (lambda: recorded(return_stats=True), ValueError, "return_stats is for calls that torch neith"),
    # gradients
    (lambda: gradients(None, LOG, ARRAY), TypeError, "output must be a NumPy array"),
    (
        lambda: gradients(ARRAY[:1], LOG, ARRAY),
        ValueError,
        r"output must have shape \(2, 4, 3, 8\)",
    ),
    (lambda: gradients(ARRAY, LOG * 1j, ARRAY), TypeError, "dtype of logsumexp must be one of"),
    (lambda: gradients(ARRAY, LOG, ARRAY.astype("f2")), TypeError, "output_gradient must be of q"),
    (lambda: gradients(ARRAY, LOG, ARRAY, LOG[:1]), ValueError, "logsumexp_gradient must have sha"),
    (lambda: gradients(ARRAY, LOG * 1e6, ARRAY), ValueError, "logsumexp must be float64, or the "),
    # merge
    (lambda: na.merge([], []), ValueError, "at least 1, got 0 and 0"),
    (lambda: na.merge([ARRAY], []), ValueError, "same length, at least 1, got 1 and 0"),
    (lambda: na.merge(None, None), TypeError, "outputs must be a list"),
    (lambda: na.merge([None], [ARRAY]), TypeError, "outputs must be a list"),
    (lambda: na.merge(torch.ones(2, 1), [ARRAY]), TypeError, "outputs must be a list"),
    (lambda: na.merge([ARRAY] * 2, [LOG, LOG[:1]]), ValueError, r"logsumexps .*, got \(1, 4, 3\)"),
    (lambda: na.merge([ARRAY, TENSOR], [LOG, LOG]), TypeError, "arrays or all be tensors, got Ten"),
    (lambda: na.merge([masked(ARRAY)], [LOG]), TypeError, "outputs must not be masked"),
    (lambda: na.merge([ARRAY], [LOG], out=ARRAY), TypeError, r"out must be a pair \(output, logsu"),  # type: ignore[arg-type]
    (lambda: na.merge([ARRAY], [LOG], out=(ARRAY[:1], LOG)), ValueError, "out must have shape"),
    (
        lambda: na.merge([RECORDED], [RECORDED[..., 0]], out=(TENSOR, TENSOR[..., 0])),
        ValueError,
        "out must be None where torch records gradients of the parts",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_a_wrong_argument_is_one_sentence(
    call: Callable[[], Any], error: type[Exception], message: str
) -> None:
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
    with pytest.raises(ValueError, match="query must have at most 2147483647 tokens"):
        na.attention(query, key, key)

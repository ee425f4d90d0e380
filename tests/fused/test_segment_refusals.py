"""Error messages for wrong segment ids, and ids from cumulative lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from attention_checks import inputs

QUERY, KEY, VALUE = inputs(2, 4, 2, 3, 5, 8)
TWO = np.array([0, 0, 1, 1, 1])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"segment_ids": [0, 0, 1, 1, 0]}, ValueError,
         "segment_ids must give each segment one run of tokens, got 0 again at token 4 of"),
        ({"segment_ids": TWO, "query_segment_ids": [[1, 1, 1], [1, 0, 1]]}, ValueError,
         "query_segment_ids must give each segment one run of tokens, got 1 again at token 2"),
        ({"segment_ids": TWO[:4]}, ValueError,
         r"segment_ids must have shape \(5,\), \(1, 5\) or \(2, 5\), got \(4,\)"),
        ({"segment_ids": na.segment_ids_from_cu_seqlens(np.array([0, 2, 6]))}, ValueError,
         r"segment_ids must have shape \(5,\).*got \(6,\)"),
        ({"segment_ids": TWO, "query_segment_ids": TWO}, ValueError,
         r"query_segment_ids must have shape \(3,\), \(1, 3\) or \(2, 3\), got \(5,\)"),
        ({"segment_ids": TWO / 1.0}, TypeError, "segment_ids must be integers, got dtype float64"),
        ({"segment_ids": TWO == 1}, TypeError, "segment_ids must be integers, got dtype bool"),
        ({"query_segment_ids": TWO[:3]}, ValueError,
         "segment_ids must be given with query_segment_ids, got None"),
        ({"segment_ids": TWO, "align": "start"}, ValueError,
         "align must be 'end' with segment_ids, got 'start'"),
        ({"segment_ids": TWO, "key_positions": [0, 1, 2, 4, 3]}, ValueError,
         "key_positions must not decrease within a segment of segment_ids, got 4 and then 3 at"),
        ({"segment_ids": TWO, "query_segment_ids": [0, 0, 0], "key_positions": np.arange(5)},
         ValueError, "query_positions must be given for segments with more queries than keys, got"),
        ({"segment_ids": TWO, "key_norms": na.KeyNorms()}, ValueError,
         "key_norms must be None when segment_ids is given"),
        ({"segment_ids": np.ma.masked_array(TWO)}, TypeError, "must not be masked"),
    ],
)  # fmt: skip
def test_wrong_numbers_are_refused(options: Any, error: Any, message: str) -> None:
    for tensors in (False, True):
        arrays = (
            [torch.from_numpy(x) for x in (QUERY, KEY, VALUE)] if tensors else (QUERY, KEY, VALUE)
        )
        with pytest.raises(error, match=message):
            na.attention(*arrays, **options)


def test_more_queries_than_keys_need_query_segment_ids() -> None:
    with pytest.raises(ValueError, match="query_segment_ids must be given for more queries than"):
        na.attention(KEY, QUERY[:, :2], QUERY[:, :2], segment_ids=[0, 0, 1])


def test_gates_need_a_key_for_each_query() -> None:
    gates, ids = na.ForgetGates(np.zeros((1, 4, 5))), {"query_segment_ids": [0, 0, 0]}
    with pytest.raises(ValueError, match="not give a segment more queries than keys with forget"):
        na.attention(QUERY, KEY, VALUE, gates, segment_ids=TWO, **ids)


@pytest.mark.slow
def test_a_trace_refuses_what_needs_the_numbers() -> None:
    torch.compiler.reset()
    tensors = [torch.from_numpy(x) for x in (QUERY, KEY, VALUE)]
    ids = torch.from_numpy(TWO)

    def attending(*sources: Any, **options: Any) -> Any:
        return na.attention(*sources, segment_ids=ids, **options)

    compiled = torch.compile(attending, fullgraph=True, backend="eager")
    for sources, options in (
        (tensors, {"log_n": 8}),
        (tensors, {"rotary": na.XPOS(8)}),
        ([x.double() for x in tensors], {}),
        ([*tensors, na.KerplePower([1.0] * 4, [1.0] * 4)], {}),
    ):
        with pytest.raises(Exception, match="segment_ids must"):
            compiled(*sources, **options)
    with pytest.raises(Exception, match="query_segment_ids must be None, or query_positions"):
        compiled(*tensors, query_segment_ids=torch.tensor([0, 1, 1]))


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([1, 3], ValueError, "cu_seqlens must begin with 0, got 1"),
        ([0, 3, 2], ValueError, "cu_seqlens must not fall, got 3 and then 2"),
        ([], ValueError, "cu_seqlens must have shape"),
        ([[0, 3]], ValueError, r"cu_seqlens must have shape \(texts \+ 1,\), got \(1, 2\)"),
        ([0.0, 3.0], TypeError, "cu_seqlens must be integers, got dtype float64"),
    ],
)
def test_wrong_cumulative_lengths_are_refused(lengths: Any, error: Any, message: str) -> None:
    for value in (
        np.array(lengths),
        torch.tensor(lengths, dtype=getattr(torch, str(np.array(lengths).dtype))),
    ):
        with pytest.raises(error, match=message):
            na.segment_ids_from_cu_seqlens(value)


def test_cumulative_lengths_of_arrays_and_tensors() -> None:
    lengths, ids = [0, 2, 2, 5], [0, 0, 2, 2, 2]
    of_array = na.segment_ids_from_cu_seqlens(np.array(lengths))
    of_tensor = na.segment_ids_from_cu_seqlens(torch.tensor(lengths, dtype=torch.int32))
    assert of_array.dtype == np.int32
    assert of_tensor.dtype == torch.int32
    assert of_array.tolist() == of_tensor.tolist() == ids
    assert na.segment_ids_from_cu_seqlens(np.array([0])).tolist() == []

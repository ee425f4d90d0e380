"""Joining of results over disjoint keys."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import ntk_alibi as na

SHAPE = (2, 3, 70, 24)


def parts(count: int, dtype: Any = np.float32) -> tuple[list[Any], list[Any]]:
    """Return outputs and logsumexps; some queries see no key in some parts, or in none."""
    rng = np.random.default_rng(count)
    outputs = [rng.standard_normal(SHAPE).astype(dtype) for _ in range(count)]
    logs = [(30 * rng.standard_normal(SHAPE[:3])).astype(np.float32) for _ in range(count)]
    logs[0][:, 0] = -np.inf
    outputs[0][:, 0] = np.nan
    for log in logs:
        log[1, 2, 5:9] = -np.inf
    return outputs, logs


def expected(outputs: list[Any], logs: list[Any]) -> tuple[Any, Any]:
    """Return sums in float64, written as the definition."""
    weights = np.exp(np.stack(logs).astype(np.float64))
    total = weights.sum(axis=0)
    wide = np.stack([np.where(np.isnan(x), 0, x.astype(np.float64)) for x in outputs])
    with np.errstate(divide="ignore", invalid="ignore"):
        output = (weights[..., None] * wide).sum(axis=0) / total[..., None]
        return np.where(total[..., None] == 0, 0, output), np.log(total)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_parts_are_joined_in_float64(isa: str, count: int, dtype: Any) -> None:
    outputs, logs = parts(count, dtype)
    output, logsumexp = na.merge(outputs, logs)
    wanted, wanted_log = expected(outputs, logs)
    assert output.dtype == dtype
    # One rounding of the result.
    rtol = float(ml_dtypes.finfo(dtype).eps) / 2 * 1.0001
    np.testing.assert_allclose(output.astype(np.float64), wanted, rtol=rtol, atol=1e-7)
    np.testing.assert_allclose(logsumexp, wanted_log, rtol=2**-24 * 1.0001)
    assert not output[1, 2, 5:9].any()


def test_strided_parts_and_results_in_place(isa: str) -> None:
    outputs, logs = parts(3)
    whole = na.merge(outputs, logs)
    apart = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in outputs]
    np.testing.assert_array_equal(na.merge(apart, logs)[0], whole[0])
    result = na.merge(outputs, logs, out=(outputs[1], logs[1]))
    assert result[0] is outputs[1]
    for got, wanted in zip(result, whole, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_result_that_overlaps_a_part_by_some_rows(isa: str) -> None:
    memory = np.random.default_rng(0).standard_normal((1, 1, 8, 24)).astype(np.float32)
    part, shifted = memory[:, :, :7], memory[:, :, 1:]
    logs = [np.zeros((1, 1, 7), np.float32)] * 2
    wanted = (part + 1) / 2
    na.merge([part, np.ones_like(part)], logs, out=(shifted, np.empty_like(logs[0])))
    np.testing.assert_allclose(shifted, wanted, rtol=2**-23)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_gradients_are_those_of_the_definition(dtype: torch.dtype) -> None:
    outputs, logs = ([torch.from_numpy(x) for x in y] for y in parts(3))
    outputs = [x.nan_to_num().to(dtype).requires_grad_() for x in outputs]
    logs = [x.requires_grad_() for x in logs]
    exact_outputs, exact_logs = (
        [x.detach().double().requires_grad_() for x in y] for y in (outputs, logs)
    )
    do, dl = torch.randn(SHAPE), torch.randn(SHAPE[:3])
    dl[1, 2, 5:9] = 0.0  # of -inf there is no gradient
    output, logsumexp = na.merge(outputs, logs)
    torch.autograd.backward([output, logsumexp], [do.to(dtype), dl])
    stacked = torch.stack(exact_logs)
    weights = stacked.softmax(0).nan_to_num()[..., None]
    exact = (weights * torch.stack(exact_outputs)).sum(0)
    total = torch.logsumexp(stacked, 0)
    torch.autograd.backward([exact, total], [do.double(), dl.double()])
    atol = 2**-6 if dtype is torch.bfloat16 else 1e-5  # sums of 24 products of values up to 4
    for mine, theirs in zip([*outputs, *logs], [*exact_outputs, *exact_logs], strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        wanted = theirs.grad.nan_to_num()
        torch.testing.assert_close(mine.grad.double(), wanted, atol=atol * 4, rtol=atol)


def test_traces_and_maps_take_operations_of_torch() -> None:
    outputs, logs = ([torch.from_numpy(x) for x in y] for y in parts(2))
    whole = na.merge(outputs, logs)

    def merged(*tensors: torch.Tensor) -> Any:
        return na.merge(tensors[:2], tensors[2:])

    for transformed in (torch.vmap(merged), torch.compile(merged, backend="eager")):
        for got, wanted in zip(transformed(*outputs, *logs), whole, strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-6)

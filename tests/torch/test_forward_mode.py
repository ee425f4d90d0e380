"""Forward-mode differentiation: right in float64, refused elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

import ntk_alibi as na
from ntk_alibi.fused import attention_gradients

# torch's own module of forward-mode differentiation uses what torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")


def tensors(dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, 4, 20, 8, dtype=dtype) for _ in range(3)]


def test_float64_has_the_derivative() -> None:
    query, key, value = tensors(torch.float64)
    direction, step = torch.randn_like(key), 1e-6
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(key, direction)
        tangent = forward_ad.unpack_dual(na.attention(query, dual, value, na.ALiBi(4))).tangent
    ahead, behind = (
        na.attention(query, key + sign * step * direction, value, na.ALiBi(4)) for sign in (1, -1)
    )
    # The error of the quotient is step^2 times a third derivative, plus rounding over the step.
    torch.testing.assert_close(tangent, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("argument", ["query", "key", "value"])
def test_other_dtypes_are_refused(argument: str, dtype: torch.dtype, recorded: bool) -> None:
    arguments = dict(zip(("query", "key", "value"), tensors(dtype), strict=True))
    with forward_ad.dual_level():
        primal = arguments[argument].requires_grad_(recorded)
        arguments[argument] = forward_ad.make_dual(primal, torch.ones_like(primal))
        with pytest.raises(ValueError, match=f"{argument} must be float64 to carry a tangent"):
            na.attention(*arguments.values(), na.ALiBi(4))


def test_gradients_refuse_tangents() -> None:
    query, key, value = tensors(torch.float32)
    results = na.attention(query, key, value, na.ALiBi(4), return_logsumexp=True)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(key, torch.ones_like(key))
        with pytest.raises(ValueError, match="key must be float64 to carry a tangent"):
            attention_gradients(query, dual, value, *results, query, bias=na.ALiBi(4))


def test_merging_refuses_tangents() -> None:
    outputs, log = tensors(torch.float32)[:2], torch.zeros(1, 4, 20)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(outputs[0], torch.ones_like(outputs[0]))
        with pytest.raises(ValueError, match="outputs must be float64 to carry a tangent"):
            na.merge([dual, outputs[1]], [log, log])


def biases(dtype: torch.dtype) -> dict[str, object]:
    """Biases of 4 heads with a tangent, made inside of a dual level."""

    def dual(*shape: int) -> torch.Tensor:
        return forward_ad.make_dual(torch.rand(shape, dtype=dtype), torch.ones(shape, dtype=dtype))

    return {
        "slopes": na.ALiBi(4, slopes=dual(4)),
        "table": na.DistanceTable(dual(4, 20), 0),
        "dense": dual(1, 4, 20, 20),
    }


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["slopes", "table", "dense"])
def test_tangents_of_biases_are_kept_or_refused(
    form: str, wide: torch.dtype, recorded: bool
) -> None:
    with forward_ad.dual_level():
        bias = biases(wide)[form]
        kept = na.attention(*tensors(torch.float64), bias)
        assert forward_ad.unpack_dual(kept).tangent is not None
        query, key, value = tensors(torch.float32)
        with pytest.raises(ValueError, match=r"(bias|slopes|table) must not carry a tangent"):
            na.attention(query.requires_grad_(recorded), key, value, bias)


@pytest.mark.parametrize("form", ["slopes", "table"])
def test_a_dense_bias_refuses_tangents(form: str) -> None:
    with forward_ad.dual_level():
        bias = biases(torch.float32)[form]
        with pytest.raises(ValueError, match="must not carry a tangent"):
            bias.tensor(20, 20)  # type: ignore[attr-defined]

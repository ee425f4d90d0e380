"""Forward-mode differentiation: right in float64, refused elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

import ntk_alibi as na

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


def test_merging_refuses_tangents() -> None:
    outputs, log = tensors(torch.float32)[:2], torch.zeros(1, 4, 20)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(outputs[0], torch.ones_like(outputs[0]))
        with pytest.raises(ValueError, match="outputs must be float64 to carry a tangent"):
            na.merge([dual, outputs[1]], [log, log])

"""Calls of flash-attn, with a stand-in for the package: its arguments, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ntk_alibi as na
from attention_checks import ROUNDING
from device_calls import FLASH_CALLS, device_call
from ntk_alibi.fused.tensors.devices.flash import FlashAttention

# Threads would wait for each other in these many small calls.
pytestmark = pytest.mark.usefixtures("one_thread")

KERNEL = FlashAttention("device_calls", device="cpu")


def tensors(
    queries: int = 40, keys: int = 70, dtype: torch.dtype = torch.bfloat16, batch: int = 2
) -> list[torch.Tensor]:
    """Return strided tensors, as layers of models pass them."""
    random = torch.Generator().manual_seed(0)
    shapes = ((queries, 8), (keys, 2), (keys, 2))
    return [
        torch.randn(batch, n, heads, 16, generator=random).to(dtype).transpose(1, 2)
        for n, heads in shapes
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lengths", [(70, 70), (40, 70), (1, 70)])
@pytest.mark.parametrize("window", [None, 1, 9])
@pytest.mark.parametrize(
    "bias",
    [
        None,
        na.ALiBi(8, na.NTK(4.0)),
        na.ALiBi(8, slopes=torch.rand(2, 8)),
        na.ALiBi(8, slopes=torch.tensor([torch.inf, 0.0] * 4)),
        na.ALiBi(8, na.DynamicNTK(2.0, 16)),
    ],
)
def test_calls_equal_those_of_the_core(
    bias: Any, window: int | None, lengths: tuple[int, int], dtype: torch.dtype
) -> None:
    q, k, v = tensors(*lengths, dtype)
    call = device_call(q, k, v, bias, window=window, scale=0.2)
    assert KERNEL.find_obstacle(call, log=False) is None
    output, logsumexp = KERNEL.compute(call, log=False)
    exact = na.attention(q.double(), k.double(), v.double(), bias, window=window, scale=0.2)
    assert logsumexp is None
    assert output.shape == q.shape
    assert output.dtype == dtype
    # The stand-in rounds its result once; slopes are float32 in both.
    bound = 2 * ROUNDING[str(dtype)[6:]] * exact.abs() + 1e-6
    assert ((output.double() - exact).abs() <= bound).all()


def test_the_arguments() -> None:
    q, k, v = tensors()
    for bias, shape in ((na.ALiBi(8), (8,)), (na.ALiBi(8, slopes=torch.rand(2, 8)), (2, 8))):
        KERNEL.compute(device_call(q, k, v, bias), log=False)
        arguments = FLASH_CALLS[-1]
        assert arguments["alibi_slopes"].shape == shape
        assert arguments["causal"] is True
        assert arguments["window_size"] == (-1, -1)
    KERNEL.compute(device_call(q, k, v, window=5), log=False)
    assert FLASH_CALLS[-1]["window_size"] == (4, 0)
    assert FLASH_CALLS[-1]["alibi_slopes"] is None


CANNOT: dict[str, tuple[Any, dict[str, Any], str]] = {
    "both sides": (na.ALiBi(8, sides="symmetric"), {"causal": False}, "causal calls"),
    "sinks": (na.ALiBi(8), {"window": 9, "sink": 2}, "no blocks and no sinks"),
    "blocks": (na.ALiBi(8), {"causal_block": 9}, "no blocks and no sinks"),
    "padding": (na.ALiBi(8), {"key_padding_mask": torch.ones(2, 70)}, "no padding"),
    "positions": (na.ALiBi(8), {"key_positions": torch.arange(70)}, "no positions"),
    "start": (na.ALiBi(8), {"align": "start"}, "no positions"),
    "queries": (na.ALiBi(8, slopes=torch.rand(2, 8, 40)), {}, "no slopes of queries"),
    "exempt": (na.ALiBi(8, exempt=2), {}, "no other bias"),
    "table": (na.DistanceTable(torch.rand(8, 70)), {}, "no other bias"),
    "sums": (na.ForgetGates(-torch.rand(2, 8, 70)), {}, "no other bias"),
    "dense": (torch.rand(8, 1, 70), {}, "no other bias"),
    "factors": (na.ALiBi(8), {"log_n": 16}, "no factors"),
    "learned": (na.ALiBi(8, slopes=torch.rand(8).requires_grad_()), {}, "no gradients of slopes"),
}


@pytest.mark.parametrize("name", CANNOT)
def test_what_flash_attention_cannot_do(name: str) -> None:
    bias, options, message = CANNOT[name]
    reason = KERNEL.find_obstacle(device_call(*tensors(), bias, **options), log=False)
    assert reason is not None
    assert message in reason


def test_what_else_it_cannot_do() -> None:
    def reason(*x: Any, log: bool = False, kernel: Any = KERNEL) -> Any:
        return kernel.find_obstacle(device_call(*x), log=log)

    q, k, v = tensors()
    assert "logsumexp" in reason(q, k, v, log=True)
    assert "bfloat16 and float16" in reason(*(x.float() for x in (q, k, v)))
    assert "no queries" in reason(q[:, :, :0], k, v)
    assert "is for cuda" in reason(q, k, v, kernel=FlashAttention("device_calls"))
    missing = FlashAttention("no_such_package", device="cpu")
    assert "not installed" in reason(q, k, v, kernel=missing)
    far = [torch.zeros(1, 8, n, 1, dtype=torch.float16) for n in (1, 2**13 + 1, 2**13 + 1)]
    assert "more than 8192 keys" in reason(*far, na.ALiBi(8))
    assert reason(*far, None) is None

"""The choice of a kernel, autocast and rotation before it, and what old GPUs get."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ntk_alibi as na
from device_calls import device_call
from ntk_alibi.fused.tensors.devices import flex
from ntk_alibi.fused.tensors.devices.dispatch import KERNELS, compute_on_device, kernel_for
from ntk_alibi.fused.tensors.devices.flash import FlashAttention
from ntk_alibi.fused.tensors.devices.flex import FlexAttention


def tensors(*shape: int, device: str = "cpu") -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=random).to(device) for _ in "qkv"]


def test_the_first_kernel_that_supports_a_call_is_chosen() -> None:
    """On a device that only the last kernel supports, with any packages installed."""
    call = device_call(*tensors(2, 8, 40, 16, device="meta"), na.ALiBi(8))
    assert kernel_for(call, log=False) is KERNELS[-1]
    assert [kernel.find_obstacle(call, log=False) is None for kernel in KERNELS] == [
        False,
        False,
        True,
    ]


def test_autocast_rounds_inputs_and_nothing_else() -> None:
    """Products of float32 values within a kernel would have 8 bits."""
    call = device_call(*tensors(1, 4, 300, 32), na.ALiBi(4))
    expected = compute_on_device(call, log=True)
    with torch.autocast("cpu", torch.bfloat16):
        results = compute_on_device(call, log=True)
    for mine, theirs in zip(results, expected, strict=True):
        assert mine is not None
        assert torch.equal(mine, theirs)


def test_rotated_calls_on_devices_without_autocast() -> None:
    x = tensors(1, 2, 9, 16, device="meta")
    assert na.attention(*x, na.ALiBi(2), rotary=na.RoPE(16)).shape == (1, 2, 9, 16)


class OnGPU(SimpleNamespace):
    """A query on a GPU, with the attributes that kernels read before they compute."""

    device = torch.device("cuda", 0)
    dtype = torch.bfloat16
    shape = (1, 4, 300, 64)
    requires_grad = False


def on_gpu() -> Any:
    return device_call(*tensors(1, 4, 300, 64), na.ALiBi(4))._replace(query=OnGPU())


@pytest.mark.parametrize(
    ("capability", "flash", "flexible"),
    [((6, 1), False, False), ((7, 5), False, True), ((8, 0), True, True), ((9, 0), True, True)],
)
def test_old_gpus_get_the_kernels_that_they_run(
    capability: tuple[int, int], flash: bool, flexible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(flex, "_has_triton", lambda: True)
    kernels = FlashAttention("device_calls"), FlexAttention()
    assert [kernel.find_obstacle(on_gpu(), log=False) is None for kernel in kernels] == [
        flash,
        flexible,
    ]


def test_without_triton_flex_attention_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where torch for CUDA has none."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(flex, "_has_triton", lambda: False)
    assert FlexAttention().find_obstacle(on_gpu(), log=False) == "Triton is not installed"

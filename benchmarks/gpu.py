"""Attention with slopes on a CUDA device: time and memory of the kernels, forward and backward."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

import ntk_alibi as na
from ntk_alibi._torch_state import Way
from ntk_alibi.evaluation.report.markdown import table
from ntk_alibi.fused.call import all_options, checked_call
from ntk_alibi.fused.tensors.devices.dispatch import DeviceKernel
from ntk_alibi.fused.tensors.devices.flash import FlashAttention
from ntk_alibi.fused.tensors.devices.flex import FlexAttention
from ntk_alibi.methods import method_name

#: Heads and channels of all problems.
HEADS, DIM = 16, 64

#: Tokens of a text.
LENGTHS = (2048, 4096, 8192, 16384, 32768, 65536)

#: The most tokens whose matrix of all pairs is built: 8 GiB in bfloat16.
LONGEST_DENSE = 16384

Attend = Callable[..., torch.Tensor]

NO_GPU = "the benchmark gpu needs a CUDA device and a torch that was built for it; there is none"


def available() -> bool:
    """Return whether there is a CUDA device."""
    return torch.cuda.is_available()


def run(rounds: int, lengths: Sequence[int] = LENGTHS) -> str:
    """Return a Markdown table of medians, in milliseconds, and of peak memory, in MiB.

    Raises:
        RuntimeError: there is no CUDA device.
    """
    if not available():
        raise RuntimeError(NO_GPU)
    rows = []
    for scaling in (None, na.NTK(4.0)):
        bias = na.ALiBi(HEADS, scaling)
        for length in lengths:
            for kind, queries in (("forward", length), ("backward", length), ("decode", 1)):
                rows += _rows(bias, kind, queries, length, rounds)
    header = ["scaling", "pass", "keys", "kernel", "ms", "MiB"]
    device = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"{device}, bfloat16, {HEADS} heads of {DIM} channels\n\n{table(header, rows)}"


def _rows(bias: Any, kind: str, queries: int, keys: int, rounds: int) -> list[list[str]]:
    random = torch.Generator("cuda").manual_seed(0)
    tensors = [
        torch.randn(1, HEADS, n, DIM, generator=random, device="cuda").bfloat16()
        for n in (queries, keys, keys)
    ]
    for x in tensors:
        x.requires_grad_(kind == "backward")
    rows = []
    for name, attend in _candidates(bias).items():
        try:
            milliseconds, memory = _measured(attend, tensors, rounds, backward=kind == "backward")
            cells = [f"{milliseconds:.3f}", f"{memory:.0f}"]
        except torch.OutOfMemoryError:
            cells = ["out of memory", ""]
        except NotImplementedError as refusal:
            cells = [str(refusal), ""]
        rows.append([method_name(bias.scaling), kind, str(keys), name, *cells])
    return rows


def _candidates(bias: Any) -> dict[str, Attend]:
    def kernel(kernel: DeviceKernel) -> Attend:
        def attend(*tensors: torch.Tensor) -> torch.Tensor:
            query, key, value = tensors
            call = checked_call(query, key, value, bias, all_options({}), Way.DEVICE)
            reason = kernel.find_obstacle(call, log=False)
            if reason is not None:
                raise NotImplementedError(reason)
            return kernel.compute(call, log=False)[0]

        return attend

    def sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if key.shape[2] > LONGEST_DENSE:
            raise NotImplementedError("a matrix of all pairs")
        dense = _dense(bias, query, key)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=dense)

    def sdpa_without_bias(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=query.shape[2] > 1)

    return {
        "na.attention": lambda query, key, value: na.attention(query, key, value, bias),
        "flash-attn": kernel(FlashAttention()),
        "FlexAttention": kernel(FlexAttention()),
        "torch's SDPA with a dense bias": sdpa,
        "torch's SDPA without a bias": sdpa_without_bias,
    }


def _dense(bias: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return the bias of all pairs as torch's kernels want it, (heads, queries, keys)."""
    queries, keys = (torch.arange(x.shape[2], device=x.device) for x in (query, key))
    distance = queries[:, None] + len(keys) - len(queries) - keys
    slopes = torch.from_numpy(na.alibi_slopes(HEADS, bias.scaling)).to(query)
    dense = -slopes[:, None, None] * distance.to(query.dtype)
    return dense.masked_fill_(distance < 0, -torch.inf)


def _measured(
    attend: Attend, tensors: list[torch.Tensor], rounds: int, *, backward: bool
) -> tuple[float, float]:
    """Return the median milliseconds and the peak memory in MiB beyond the inputs."""

    def once() -> None:
        with torch.set_grad_enabled(backward):
            output = attend(*tensors)
        if backward:
            torch.autograd.grad(output, tensors, torch.ones_like(output))

    for _ in range(3):  # compiles
        once()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        once()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    memory = (torch.cuda.max_memory_allocated() - before) / 2**20
    return statistics.median(times), memory

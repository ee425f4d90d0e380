"""Benchmark of backward passes of causal attention: ours and torch's, with slope gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional as F

import ntk_alibi as na
from ntk_alibi.cli.timing import interleaved
from ntk_alibi.evaluation.report.markdown import describe_machine, table

HEADS, HEAD_DIM = 16, 64
LENGTHS = (2048, 8192)
SECONDS_PER_TURN = 0.3

BASELINE = "torch SDPA, causal, *no bias*"


def run(rounds: int, lengths: tuple[int, ...] = LENGTHS) -> str:
    """Run the benchmark and return all tables as Markdown."""
    head = (
        f"{describe_machine()}; float32, B = 1, H = {HEADS}, D = {HEAD_DIM}, unit-variance inputs; "
        f"medians of {rounds} interleaved rounds. All but the first differentiate the slopes, too."
    )
    return "\n\n".join([head, *(length_table(length, rounds) for length in lengths)])


def length_table(length: int, rounds: int) -> str:
    """Return the table of one length: forward and backward time of each candidate."""
    generator = torch.Generator().manual_seed(0)
    query, key, value, incoming = (
        torch.randn((1, HEADS, length, HEAD_DIM), generator=generator) for _ in range(4)
    )
    inputs = [x.requires_grad_() for x in (query, key, value)]
    slopes = torch.from_numpy(np.array(na.alibi_slopes(HEADS))).requires_grad_()
    forward = _candidates(inputs, slopes)
    outputs = {name: call() for name, call in forward.items()}
    sources = {name: inputs if name == BASELINE else [*inputs, slopes] for name in forward}

    def backward(name: str) -> Callable[[], object]:
        return lambda: torch.autograd.grad(
            outputs[name], sources[name], incoming, retain_graph=True
        )

    ahead = interleaved(forward, rounds, SECONDS_PER_TURN)
    back = interleaved({name: backward(name) for name in forward}, rounds, SECONDS_PER_TURN)
    rows = [
        [
            name,
            f"{1e3 * ahead[name]:.1f}",
            f"{1e3 * back[name]:.1f}",
            f"{back[BASELINE] / back[name]:.2f}",
            f"{(ahead[BASELINE] + back[BASELINE]) / (ahead[name] + back[name]):.2f}",
        ]
        for name in forward
    ]
    header = ["", "forward, ms", "backward, ms", "backward / no bias", "both / no bias"]
    return f"L = {length}\n\n{table(header, rows)}"


def _candidates(
    inputs: list[torch.Tensor], slopes: torch.Tensor
) -> dict[str, Callable[[], torch.Tensor]]:
    query, key, value = inputs
    length = query.shape[2]
    positions = torch.arange(1.0 - length, 1.0)[:, None].expand(1, HEADS, length, 1)

    def folded() -> torch.Tensor:
        scale = 1.0 / math.sqrt(HEAD_DIM)
        channel = (slopes / scale)[None, :, None, None].expand(1, HEADS, length, 1)
        output = F.scaled_dot_product_attention(
            torch.cat([query, channel], -1),
            torch.cat([key, positions], -1),
            F.pad(value, (0, 1)),
            is_causal=True,
            scale=scale,
        )
        return output[..., :-1]

    def ours(tolerance: float | None) -> Callable[[], torch.Tensor]:
        bias = na.ALiBi(HEADS, slopes=slopes)
        return lambda: na.attention(query, key, value, bias, skip_tolerance=tolerance)

    return {
        BASELINE: lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True),
        "torch SDPA, causal, slope in an extra channel": folded,
        "ours, every block": ours(None),
        "ours, `skip_tolerance=0.0`": ours(0.0),
        "ours, `skip_tolerance=2**-9`": ours(2.0**-9),
    }

"""Calls as users write them, for type checkers (tests/test_types.py); it also runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import BloomConfig, BloomModel
from typing_extensions import assert_type

import ntk_alibi as na
from ntk_alibi.fused import Stats
from ntk_alibi.integrations import PatchHandle


def arrays(x: NDArray[np.float32]) -> None:
    bias = na.ALiBi(2, na.NTK(4.0))
    assert na.ALiBi(2, "ntk:4") == na.ALiBi(2, {"alibi_type": "ntk", "factor": 4.0}) == bias
    assert_type(na.attention(x, x, x), NDArray[Any])
    assert_type(na.attention(x, x, x, bias, window=2, skip_tolerance=None), NDArray[Any])
    output, _ = na.attention(x, x, x, bias, return_logsumexp=True)
    assert_type(output, NDArray[Any])
    output, stats = na.attention(x, x, x, bias, return_stats=True)
    assert_type(output, NDArray[Any])
    output, _, stats = na.attention(x, x, x, bias, return_logsumexp=True, return_stats=True)
    assert isinstance(stats, Stats)
    assert_type(na.merge([x], [x[..., 0]]), tuple[NDArray[Any], NDArray[Any]])
    quantized = na.QuantizedRows.of(x)
    assert_type(na.attention(x, quantized, quantized), NDArray[Any])
    assert_type(na.alibi_slopes(2), NDArray[np.float32])
    assert_type(na.alibi_slopes(2, na.DynamicNTK(1.0, 8), [4, 5]), NDArray[np.float32])
    mask = np.ones((1, 3), np.int64)
    assert_type(na.build_alibi_tensor(mask, 2, np.float32), NDArray[Any])
    assert_type(na.RoPE(4).rotate(x), NDArray[Any])


def tensors(x: torch.Tensor) -> None:
    bias = na.ALiBi(2, slopes=torch.nn.Parameter(torch.ones(2)))
    assert_type(na.attention(x, x, x, bias, window=2, sink=1), torch.Tensor)
    assert_type(na.attention(torch.nn.Parameter(x), x, x), torch.Tensor)
    output, _ = na.attention(x, x, x, return_logsumexp=True)
    assert_type(output, torch.Tensor)
    output, _ = na.attention(x, x, x, return_stats=True)
    assert_type(output, torch.Tensor)
    assert_type(na.merge([x], [x[..., 0]]), tuple[torch.Tensor, torch.Tensor])
    lengths = torch.tensor([4, 5])
    assert_type(na.alibi_slopes(2, na.DynamicNTK(1.0, 8), lengths), torch.Tensor)
    assert_type(na.build_alibi_tensor(lengths[None] > 0, 2, torch.float32), torch.Tensor)
    assert_type(na.RoPE(4).rotate(x), torch.Tensor)


def models(model: torch.nn.Module) -> None:
    """Assert the types of patches."""
    with na.patch(model, "ntk:4") as handle:
        assert_type(handle, PatchHandle)
        assert_type(na.patched(model), list[PatchHandle])
    assert_type(na.unpatch(model), None)


if __name__ == "__main__":
    arrays(np.ones((1, 2, 3, 4), np.float32))
    tensors(torch.ones(1, 2, 3, 4))
    models(BloomModel(BloomConfig(vocab_size=8, hidden_size=8, n_layer=1, n_head=2)))

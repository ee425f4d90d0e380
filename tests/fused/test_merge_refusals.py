"""Error messages for wrong arguments of `merge`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na

ARRAY = np.ones((2, 4, 3, 8), np.float32)
LOG = ARRAY[..., 0]
RECORDED = torch.ones(2, 4, 3, 8, requires_grad=True)

#: What is called, the class of its error, and words of the message.
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "lengths of parts": (
        lambda: na.merge([ARRAY], []),
        ValueError,
        "outputs and logsumexps must have the same length, at least 1, got 1 and 0",
    ),
    "shapes of parts": (
        lambda: na.merge([ARRAY, ARRAY], [LOG, LOG[:1]]),
        ValueError,
        r"logsumexps must have shape \(2, 4, 3\), got \(1, 4, 3\)",
    ),
    "frameworks of parts": (
        lambda: na.merge([ARRAY, torch.ones(2, 4, 3, 8)], [LOG, LOG]),
        TypeError,
        "outputs must all be arrays or all be tensors, got Tensor and ndarray",
    ),
    "masked parts": (
        lambda: na.merge([np.ma.masked_array(ARRAY)], [LOG]),
        TypeError,
        "outputs must not be a masked array",
    ),
    "one buffer": (
        lambda: na.merge([ARRAY], [LOG], out=ARRAY),  # type: ignore[arg-type]
        TypeError,
        r"out must be a pair \(output, logsumexp\), got",
    ),
    "shape of a buffer": (
        lambda: na.merge([ARRAY], [LOG], out=(ARRAY[:1], LOG)),
        ValueError,
        "out must have shape",
    ),
    "buffers of recorded parts": (
        lambda: na.merge([RECORDED], [RECORDED[..., 0]], out=(RECORDED, RECORDED[..., 0])),
        ValueError,
        "out must be None where torch records gradients of the parts",
    ),
}


@pytest.mark.parametrize(("call", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refusals(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()

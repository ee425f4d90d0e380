"""Errors that say what to do: who does it gets the right result, or it is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, create_mask

import ntk_alibi as na
from ntk_alibi.reference import attention as reference

BATCH, HEADS, TOKENS, DIM = 2, 4, 5, 8
RANDOM = np.random.default_rng(0)
INPUTS = tuple(RANDOM.standard_normal((3, BATCH, HEADS, TOKENS, DIM)).astype(np.float32))
PREFIX = np.tri(TOKENS, dtype=bool) | (np.arange(TOKENS) < 3)


def attend(*bias: Any, arrays: Any = INPUTS, **options: Any) -> Any:
    return na.attention(*arrays, *bias, **options)


def expected(bias: Any = 0.0, seen: Any = True, **options: Any) -> Any:
    return reference(*INPUTS, bias, mask=seen, **options)[0]


CAUSAL = np.tri(TOKENS, dtype=bool)
DISTANCE = abs(np.arange(TOKENS)[:, None] - np.arange(TOKENS))
SLOPES = na.alibi_slopes(HEADS)[:, None, None]

TENSORS = tuple(map(torch.from_numpy, INPUTS))
FLEX = create_block_mask(
    lambda b, h, i, j: (i >= j) | (j < 3), None, None, TOKENS, TOKENS, device="cpu"
)

#: Rows of two lengths, nested and padded, and what of the padded ones is real.
LENGTHS = torch.tensor([3, TOKENS])
REAL = torch.arange(TOKENS) < LENGTHS[:, None]
NESTED = [
    torch.nested.nested_tensor(
        [x[i, :, : LENGTHS[i]].mT.contiguous() for i in range(2)], layout=torch.jagged
    ).mT
    for x in TENSORS
]


HIDING = np.broadcast_to(REAL[:, None, :, None], INPUTS[0].shape)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its interface may change
    MASKED = torch.masked.masked_tensor(TENSORS[1], torch.from_numpy(HIDING.copy()))


def of_real_rows(result: Any) -> Any:
    return np.concatenate([np.asarray(result)[i, :, : LENGTHS[i]] for i in range(BATCH)], axis=1)


def packed() -> Any:
    """Attend to the rows of both lengths, one after another in one row."""
    rows = [torch.cat([x[i, :, : LENGTHS[i]] for i in range(2)], 1)[None] for x in TENSORS]
    ids = torch.arange(2).repeat_interleave(LENGTHS)
    return attend(na.ALiBi(HEADS), arrays=rows, segment_ids=ids)[0]


#: What is asked, the advice in its error, what obeys it, and the right result.
ADVICE: dict[str, tuple[Callable[[], Any], str, Callable[[], Any], Callable[[], Any]]] = {
    "a mask that shows keys ahead of a causal bias": (
        lambda: attend(na.ALiBi(HEADS), causal=False, mask=PREFIX[None, None]),
        r"\(sides='symmetric' of ALiBi\) .*; causal=True hides all keys ahead",
        lambda: attend(na.ALiBi(HEADS, sides="symmetric"), causal=False, mask=PREFIX[None, None]),
        lambda: expected(-SLOPES * DISTANCE, PREFIX),
    ),
    "torch's BlockMask": (
        lambda: attend(arrays=TENSORS, causal=False, mask=FLEX),
        r"got torch's BlockMask: pass create_mask\(mask.mask_mod, B, H, Q_LEN, KV_LEN, device\)",
        lambda: attend(
            arrays=TENSORS,
            causal=False,
            mask=create_mask(FLEX.mask_mod, 1, 1, TOKENS, TOKENS, device="cpu"),
        ),
        lambda: expected(seen=PREFIX),
    ),
    "nested tensors, padded": (
        lambda: attend(na.ALiBi(HEADS), arrays=NESTED),
        r"query must be a dense tensor, .* query.to_padded_tensor\(0\) does, and pass",
        lambda: of_real_rows(
            attend(
                na.ALiBi(HEADS),
                arrays=[x.to_padded_tensor(0) for x in NESTED],
                key_padding_mask=REAL,
            )
        ),
        lambda: of_real_rows(expected(-SLOPES * DISTANCE, CAUSAL & REAL[:, None, None].numpy())),
    ),
    "nested tensors, packed": (
        lambda: attend(na.ALiBi(HEADS), arrays=NESTED),
        "or put them one after another into one row, and pass segment_ids",
        packed,
        lambda: of_real_rows(expected(-SLOPES * DISTANCE, CAUSAL)),
    ),
    "a masked tensor": (
        lambda: attend(arrays=(TENSORS[0], MASKED, TENSORS[2])),
        r"key must not be masked, .* pass key.get_data\(\), and what it hides as key_padding_mask",
        lambda: attend(arrays=(TENSORS[0], MASKED.get_data(), TENSORS[2]), key_padding_mask=REAL),
        lambda: expected(seen=CAUSAL & REAL[:, None, None].numpy()),
    ),
    "a masked array": (
        lambda: attend(arrays=(INPUTS[0], np.ma.array(INPUTS[1], mask=~HIDING), INPUTS[2])),
        r"key must not be masked, .* pass key.filled\(...\), and what it hides as key_padding_mask",
        lambda: attend(
            arrays=(INPUTS[0], np.ma.array(INPUTS[1], mask=~HIDING).filled(7.0), INPUTS[2]),
            key_padding_mask=REAL.numpy(),
        ),
        lambda: expected(seen=CAUSAL & REAL[:, None, None].numpy()),
    ),
}


@pytest.mark.parametrize("name", ADVICE)
def test_who_does_what_an_error_says_gets_the_right_result(name: str) -> None:
    asked, advice, obeyed, right = ADVICE[name]
    with pytest.raises((TypeError, ValueError), match=advice):
        asked()
    result, want = obeyed(), right()
    np.testing.assert_allclose(np.asarray(result, np.float64), want, rtol=1e-5, atol=2e-6)

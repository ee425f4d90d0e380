"""Errors that say what to do: who does it gets the right result, or it is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.exc import Unsupported
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


PER_HEAD = na.alibi_slopes(HEADS)
RECORDED = torch.tensor(PER_HEAD, requires_grad=True)
ADDED = np.where(PREFIX, 0, -np.inf).astype(np.float32)[None, None]
OWN = type("Own", (na.DynamicNTK,), {})(2.0, TOKENS)
OF_ROWS = na.alibi_slopes(HEADS, OWN, [TOKENS])
KERPLE, FIXED = na.KerpleLog(PER_HEAD, PER_HEAD), na.ALiBi(HEADS, slopes=OF_ROWS)
TABLE = na.DistanceTable(-abs(np.arange(1 - TOKENS, TOKENS))[None].repeat(HEADS, 0), 1 - TOKENS)
NORMS = na.KeyNorms().update(TENSORS[1])


def attend_at(bias: Any, positions: Any) -> Any:
    return attend(bias, arrays=TENSORS, key_positions=positions, query_positions=positions)


def traced(call: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(call, backend="eager", fullgraph=True)(torch.arange(TOKENS))


class Attends(torch.nn.Module):
    def forward(self, *arrays: torch.Tensor) -> torch.Tensor:
        return attend(na.ALiBi(HEADS), arrays=arrays)


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
    "slopes that require grad where the result is a constant": (
        lambda: na.ALiBi(HEADS, slopes=RECORDED).tensor(TOKENS, TOKENS),
        r"slopes must not require grad here, .* pass slopes.detach\(\)",
        lambda: na.ALiBi(HEADS, slopes=RECORDED.detach()).tensor(TOKENS, TOKENS),
        lambda: np.where(CAUSAL, -SLOPES * DISTANCE, -np.inf)[None],
    ),
    "padding as a mask": (
        lambda: attend(mask=REAL.numpy()),
        "pass padding as key_padding_mask, and pairs",
        lambda: attend(key_padding_mask=REAL.numpy()),
        lambda: expected(seen=CAUSAL & REAL[:, None, None].numpy()),
    ),
    "a mask of values to add": (
        lambda: attend(mask=ADDED, causal=False),
        "mask must be boolean, .* got float32: pass an array to add as bias",
        lambda: attend(ADDED, causal=False),
        lambda: expected(seen=PREFIX),
    ),
    "a scaling in place of a bias": (
        lambda: attend(na.NTK(4.0)),
        r"bias must be .*: pass ALiBi\(num_heads, NTK\(factor=4.0\)\)",
        lambda: attend(na.ALiBi(HEADS, na.NTK(4.0))),
        lambda: expected(-na.alibi_slopes(HEADS, na.NTK(4.0))[:, None, None] * DISTANCE, CAUSAL),
    ),
    "a pair of slopes": (
        lambda: na.ALiBi(HEADS, slopes=(PER_HEAD, PER_HEAD)),
        r"a pair \(left, right\) needs sides='two_slopes'",
        lambda: attend(
            na.ALiBi(HEADS, slopes=(PER_HEAD, PER_HEAD), sides="two_slopes"), causal=False
        ),
        lambda: expected(-SLOPES * DISTANCE),
    ),
    "norms where torch records": (
        lambda: attend(arrays=(TENSORS[0].clone().requires_grad_(), *TENSORS[1:]), key_norms=NORMS),
        r"key_norms is for calls that torch neither records nor traces: use torch.no_grad\(\)",
        lambda: torch.no_grad()(attend)(
            arrays=(TENSORS[0].clone().requires_grad_(), *TENSORS[1:]), key_norms=NORMS
        ),
        lambda: expected(seen=CAUSAL),
    ),
    "positions of a bias over distance in a trace": (
        lambda: traced(lambda at: attend_at(KERPLE, at)),
        "pass a DistanceTable, which covers fixed distances",
        lambda: traced(lambda at: attend_at(TABLE, at)),
        lambda: expected(-DISTANCE, CAUSAL),
    ),
    "a scaling of one's own in a trace": (
        lambda: traced(lambda _: attend(na.ALiBi(HEADS, OWN), arrays=TENSORS)),
        r"pass ALiBi\(num_heads, slopes=na.alibi_slopes\(...\)\), made outside",
        lambda: traced(lambda _: attend(FIXED, arrays=TENSORS)),
        lambda: expected(-OF_ROWS[..., None, None] * DISTANCE, CAUSAL),
    ),
    "torch.jit.trace": (
        lambda: torch.jit.trace(Attends(), TENSORS),
        "use torch.export or torch.compile",
        lambda: torch.export.export(Attends(), TENSORS).module()(*TENSORS),
        lambda: expected(-SLOPES * DISTANCE, CAUSAL),
    ),
    # Names of other libraries' arguments, each with the values that these libraries take.
    "attn_mask of booleans": (
        lambda: attend(attn_mask=PREFIX),
        "pass a boolean array as mask",
        lambda: attend(mask=PREFIX[None, None], causal=False),
        lambda: expected(seen=PREFIX),
    ),
    "alibi_slopes": (
        lambda: attend(alibi_slopes=PER_HEAD),
        r"pass bias=na.ALiBi\(num_heads, slopes=alibi_slopes\)",
        lambda: attend(na.ALiBi(HEADS, slopes=PER_HEAD)),
        lambda: expected(-SLOPES * DISTANCE, CAUSAL),
    ),
    "cu_seqlens": (
        lambda: attend(cu_seqlens=np.array([0, 2, 5])),
        r"pass segment_ids=na.segment_ids_from_cu_seqlens\(cu_seqlens\)",
        lambda: attend(segment_ids=na.segment_ids_from_cu_seqlens(np.array([0, 2, 5]))),
        lambda: expected(seen=CAUSAL & (np.array([0, 0, 1, 1, 1])[:, None] == [0, 0, 1, 1, 1])),
    ),
    "window_size of flash-attn, (2, 0)": (
        lambda: attend(window_size=(2, 0)),
        r"pass window, which counts the query itself: window_size\[0\] \+ 1",
        lambda: attend(window=3),
        lambda: expected(seen=CAUSAL & (DISTANCE <= 2)),
    ),
}


#: What is asked, and the advice in its error, which says all of what is to be done.
SAID: dict[str, Callable[[], Any]] = {
    r"query must be a dense tensor, see query.to_dense\(\)": lambda: attend(
        arrays=(TENSORS[0].to_sparse(), *TENSORS[1:])
    ),
    r"native byte order, .* pass query.astype\('float32'\)": lambda: attend(
        arrays=[x.astype(">f4") for x in INPUTS]
    ),
    r"pass query.astype\(numpy.float32\), or see ntk_alibi.reference.attention": lambda: attend(
        arrays=[x.astype(float) for x in INPUTS]
    ),
    "mask must be boolean, .* pass mask != 0": lambda: attend(mask=PREFIX[None, None].astype(int)),
    r"pass its dequantized\(\)": lambda: np.asarray(na.QuantizedRows.of(INPUTS[1])),
    r'got 4.0: did you mean NTK\(4\), or "ntk:4"': lambda: na.alibi_slopes(8, 4.0),
    "'is_causal': pass causal, which is True by default": lambda: attend(is_causal=True),
    "'dropout_p': pass dropout, and a seed with arrays": lambda: attend(dropout_p=0.5),
    "'softmax_scale': pass scale$": lambda: attend(causal_=1, softmax_scale=1),
    "'block_mask': pass mask: a boolean array": lambda: attend(block_mask=FLEX),
    "'enable_gqa'.* always have fewer heads": lambda: attend(enable_gqa=True),
    "'softcap': leave it out, because scores are not cap": lambda: attend(softcap=1.0),
    "unexpected keyword argument 'softcaps'$": lambda: attend(softcaps=1.0),
    "segment_ids=na.segment_ids_from_cu_seqlens": lambda: attend(cu_seqlens_q=PREFIX),
    "pass return_logsumexp for the logsumexp": lambda: attend(return_attn_probs=True),
}


@pytest.mark.parametrize("advice", SAID)
def test_an_error_says_what_to_do(advice: str) -> None:
    with pytest.raises((TypeError, ValueError), match=advice):
        SAID[advice]()


IN_GRAPHS = pytest.mark.needs("torch >= 2.12", "before, attention breaks a graph")


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[IN_GRAPHS] if x.endswith("in a trace") else []) for x in ADVICE],
)
def test_who_does_what_an_error_says_gets_the_right_result(name: str) -> None:
    asked, advice, obeyed, right = ADVICE[name]
    with pytest.raises((TypeError, ValueError, Unsupported), match=advice):
        asked()
    result, want = obeyed(), right()
    np.testing.assert_allclose(np.asarray(result, np.float64), want, rtol=1e-5, atol=2e-6)

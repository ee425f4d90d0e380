"""Error messages for wrong arguments of the torch module."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ntk_alibi as na
from ntk_alibi.fused.gradients import attention_gradients

HEADS, SIZE, QUERIES, KEYS = 6, 48, 20, 33
DENSE = torch.zeros(HEADS, QUERIES, KEYS)
MASK = torch.ones(2, KEYS, dtype=torch.bool)
OWN = torch.linspace(0.0, 0.8, HEADS).tolist()

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"num_heads": 0}, ValueError, "num_heads must be between 1 and .*, got 0"),
    ({"num_heads": 5}, ValueError, "embed_dim must be a multiple of num_heads = 5, got 48"),
    ({"embed_dim": 6 * 257}, ValueError, "embed_dim must be at most 1536 for 6 heads, got 1542"),
    ({"num_kv_heads": 4}, ValueError, "num_heads must be a multiple of num_kv_heads = 4, got 6"),
    ({"slopes": "best"}, ValueError, "slopes must be one of 'random', .*, got 'best'"),
    ({"slopes": -1.0}, ValueError, "slopes must be a finite number >= 0, got -1.0"),
    ({"slopes": [0.5] * 5}, ValueError, "slopes must have 6 heads, got 5"),
    ({"slopes": (OWN, OWN)}, ValueError, r"slopes must have shape \(heads,\), got \(2, 6\)"),
    ({"slopes": ["a"] * 6}, TypeError, r"slopes must hold real .*, got \['a', "),
    ({"slopes": [math.nan] * 6}, ValueError, "slopes must be finite, got nan"),
    ({"slopes": [1e39] * 6}, ValueError, "slopes must be within float32's range"),
    ({"slopes": {0.5}}, TypeError, r"slopes must be a number, got \{0.5\}"),
    ({"slopes": torch.ones(2, 6)}, ValueError, r"slopes must have shape \(6,\), got \(2, 6\)"),
    ({"slopes": torch.ones(6).int()}, TypeError, "slopes must be floating, got dtype torch.int32"),
    (
        {"slopes": 1.0, "scaling": na.NTK(2.0)},
        ValueError,
        "scaling must be None when slopes is given",
    ),
    ({"slopes": 1.0, "bias": DENSE}, ValueError, "bias must be None when slopes is given"),
    ({"bias": "alibi"}, TypeError, "bias must be None, a bias object, .*, got 'alibi'"),
    ({"bias": na.ALiBi(4)}, ValueError, "bias must have query's 6 heads, got ALiBi"),
    ({"bias": na.ALiBi(6)}, ValueError, "bias must cover both sides"),
    ({"dropout": 1.5}, ValueError, "dropout must be at most 1, got 1.5"),
]


@pytest.mark.parametrize(("change", "error", "message"), WRONG)
def test_bad_arguments_get_a_sentence(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        na.AlibiAttention(**{"num_heads": HEADS, "embed_dim": SIZE, **change})


BAD_INPUTS: list[tuple[Callable[..., Any], type[Exception], str]] = [
    (lambda q, k, v: (q[0], k, v), ValueError, r"q must have shape \(batch, length, 48\), got \("),
    (lambda q, k, v: (q, k[..., 1:], v), ValueError, r"k must have shape .* got \(2, 33, 47\)"),
    (lambda q, k, v: (q, k, v.numpy()), TypeError, "v must be a torch tensor, got a ndarray of"),
    (lambda q, k, v: (q, k[:1], v), ValueError, "k must have q's batch 2, got 1"),
    (
        lambda q, k, v: (q, k, q),
        ValueError,
        r"v must have k's shape \(2, 33, 48\), got",
    ),
    (
        lambda *x: (*x, None, MASK[:, 1:]),
        ValueError,
        r"key_padding_mask must have shape .* \(2, 33\), got \(2, 32\)",
    ),
    (lambda *x: (*x, MASK), ValueError, r"mask must have shape .* \(2, 33\): pass padding as key_"),
    (lambda *x: (*x, MASK.tolist()), TypeError, "mask must be None, a BlockMask or a boolean"),
    (lambda *x: (*x, None, MASK.tolist()), TypeError, "key_padding_mask must be a NumPy array or"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD_INPUTS)
def test_bad_inputs_get_a_sentence(change: Any, error: type[Exception], message: str) -> None:
    inputs = [torch.zeros(2, length, SIZE) for length in (QUERIES, KEYS, KEYS)]
    with pytest.raises(error, match=message):
        na.AlibiAttention(HEADS, SIZE)(*change(*inputs))


TOLD = r"has no name by which .* use torch 2\.9 to 2\.14"


def test_a_torch_without_a_private_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    query = torch.randn(1, 2, 3, 8)
    monkeypatch.delattr(torch._C, "_are_functorch_transforms_active")
    with pytest.raises(RuntimeError, match=TOLD):
        na.attention(query, query, query)


def test_an_operator_without_a_private_name_is_told() -> None:
    code = """
import torch
from torch.utils import _python_dispatch
del _python_dispatch._get_current_dispatch_mode_stack
import ntk_alibi.fused.tensors.operator
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert re.search(TOLD, done.stderr.splitlines()[-1])


@pytest.mark.parametrize("name", ["key", "output", "logsumexp", "logsumexp_gradient"])
def test_gradients_name_what_torch_records(name: str) -> None:
    query = torch.randn(1, 2, 3, 8)
    output, log = na.attention(query, query, query, return_logsumexp=True)
    given = {"query": query, "key": query, "value": query, "output": output, "logsumexp": log}
    given |= {"output_gradient": output, "logsumexp_gradient": log}
    given[name] = given[name].clone().requires_grad_()
    with pytest.raises(ValueError, match=f"^{name} must be a tensor that torch neither records"):
        attention_gradients(**given)

"""Benchmark of errors: ours and torch's SDPA, with the same bias, against float64.

It measures no time. Scores of larger deviation lose more, in float32, by any kernel.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import functional as F

import ntk_alibi as na
from ntk_alibi.evaluation.records.corpus import held_out_text
from ntk_alibi.evaluation.report.markdown import describe_machine, table
from ntk_alibi.models import load

HEADS, LENGTH, HEAD_DIM = 8, 2048, 64
DEVIATIONS = (1, 8, 30)
SLOPES = {"original": None, "stretched, `flat:8`": "flat:8", "stretched, `ntk:8`": "ntk:8"}


def run(_rounds: int) -> str:
    """Return the table of errors as Markdown."""
    random = torch.Generator().manual_seed(0)
    draws = torch.randn(3, 1, HEADS, LENGTH, HEAD_DIM, generator=random)
    rows = []
    with torch.no_grad():
        deviations = sorted({*DEVIATIONS, _trained_deviation()})
        for name, method in SLOPES.items():
            bias = na.ALiBi(HEADS, method)
            dense: Any = bias.tensor(LENGTH, LENGTH, torch.float32)
            for deviation in deviations:
                query, key, value = draws[0] * deviation, draws[1], draws[2]
                exact = _exact(query, key, value, dense)
                ours, stats = na.attention(query, key, value, bias, return_stats=True)
                theirs = F.scaled_dot_product_attention(query, key, value, attn_mask=dense)
                errors = [f"{float((x - exact).abs().max()):.1e}" for x in (ours, theirs)]
                share = f"{100 * float(stats.share.mean()):.0f} %"
                rows.append([name, f"{deviation:g}", *errors, share])
    head = (
        f"{describe_machine()}; float32, B = 1, H = {HEADS}, L = {LENGTH}, D = {HEAD_DIM}, normal "
        "random inputs of variance 1, queries times the deviation of the scores; greatest error of "
        "the outputs against float64, and the share of blocks of keys that ours reads by default. "
        f"{_trained_deviation():g} is the largest deviation that a head of the nano BLOOM has on "
        "prose of its training length:"
    )
    columns = ["slopes", "deviation", "ours", "torch SDPA, dense bias", "blocks read"]
    return f"{head}\n\n{table(columns, rows)}"


@functools.cache
def _trained_deviation() -> float:
    """Return the largest deviation of the scores of a trained model's heads."""
    loaded, tokenizer, length = load()
    model: Any = loaded
    ids = tokenizer(" ".join(held_out_text()), return_tensors="pt")["input_ids"][:, :length]
    packed: list[torch.Tensor] = []
    layers = [block.self_attention for block in model.transformer.h]
    for layer in layers:
        layer.query_key_value.register_forward_hook(lambda _, __, output: packed.append(output))
    with torch.no_grad():
        model(ids, use_cache=False)
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    found = []
    for layer, states in zip(layers, packed, strict=True):
        query, key, _ = states[0].unflatten(1, (-1, 3, layer.head_dim)).permute(2, 1, 0, 3)
        scores = query @ key.mT * layer.inv_norm_factor
        found += [float(head[seen].std()) for head in scores]
    return round(max(found), 1)


def _exact(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Return attention in float64."""
    query, key, value, bias = (x.double() for x in (query, key, value, bias))
    return torch.softmax(query @ key.mT / HEAD_DIM**0.5 + bias, -1) @ value

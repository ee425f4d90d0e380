"""The proof that keys of a rank weigh nothing for new tokens, against the worst of such keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from ntk_alibi.biases.base import to_kernel_bias
from ntk_alibi.distributed.spread import KeyWeightBounds
from ntk_alibi.masks import EVERYTHING, Mask, Problem

RANKS, KEYS, DIM = 4, 200, 16

#: The share of the weights of each of three negligible ranks.
SHARE = 2.0**-25 / 3


def bounds_at(distance: int, bias: Any, mask: Mask = EVERYTHING, new: int = 1) -> KeyWeightBounds:
    """Return the bounds of 200 keys, the last of which is `distance` before the first new token."""
    keys = np.arange(KEYS)[None]
    queries = keys[:, -1:] + distance + np.arange(new)
    problem = Problem((1, 2, new, KEYS), mask)
    kernel = to_kernel_bias(bias, problem)
    shown = np.ones((1, KEYS), np.bool_)
    placed = problem._replace(key_padding_mask=shown, query_positions=queries, key_positions=keys)
    return KeyWeightBounds(RANKS, placed, np.ones((1, new), np.bool_), kernel)


def tokens(seed: int, length: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries of two heads, new keys, and the keys of a rank, of one head of keys."""
    rng = torch.Generator().manual_seed(seed)
    query = torch.randn(1, 2, 1, DIM, generator=rng)
    key = torch.randn(1, 1, 1, DIM, generator=rng)
    held = 3.0 + length * torch.randn(1, 1, KEYS, DIM, generator=rng)
    return query, key, held


@pytest.mark.parametrize("length", [0.1, 1.0, 4.0])
@pytest.mark.parametrize(
    "bias",
    [na.ALiBi(2, slopes=np.array([0.5, 0.1], np.float32)), na.ALiBi(2, na.Knee(60, 2.0))],
    ids=["linear", "knee"],
)
def test_the_worst_keys_of_these_norms_weigh_less_than_the_share(bias: Any, length: float) -> None:
    told = []
    for seed in range(3):
        query, key, held = tokens(seed, length)
        norms = na.KeyNorms().update(held)
        centre = torch.from_numpy(norms.centres[0, 0])
        for distance in np.unique(np.geomspace(1, 60000, 25).astype(int)):
            at = bounds_at(distance, bias)
            negligible = at.is_negligible(query, key, None, 0.25, norms)
            told.append(negligible)
            if not negligible:
                continue
            for head in range(2):
                q = query[0, head, 0].double()
                away = torch.from_numpy(norms.norms[0, 0, : -(-KEYS // 64), 0]).double()
                away = away.repeat_interleave(64)[:KEYS]
                # every key lies as far from the centre, towards the query, as its block allows
                scores = 0.25 * (q @ centre.double() + q.norm() * away)
                far = np.arange(KEYS)[::-1] + distance
                row = torch.from_numpy(bias.tensor(1, int(far[0]) + 1)[0, head, 0]).double()
                total = torch.logsumexp(scores + row.flip(0)[torch.from_numpy(far.copy())], 0)
                own = 0.25 * (q @ key[0, 0, 0].double())
                assert float((total - own).exp()) <= SHARE
    assert any(told)
    assert not all(told)


def test_factors_windows_and_values_that_are_not_finite() -> None:
    bias = na.ALiBi(2, slopes=np.array([0.5, 0.1], np.float32))
    query, key, held = tokens(0)
    norms = na.KeyNorms().update(held)
    assert bounds_at(500, bias).is_negligible(query, key, None, 0.25, norms)
    assert not bounds_at(500, bias).is_negligible(
        query, key, torch.full((1, 1, 1), 40.0), 0.25, norms
    )
    # a window hides all of these keys
    infinite = na.KeyNorms().update(held / 0.0)
    assert bounds_at(100, bias, Mask(window=100)).is_negligible(query, key, None, 0.25, infinite)
    assert not bounds_at(99, bias, Mask(window=100)).is_negligible(query, key, None, 0.25, norms)
    assert not bounds_at(500, bias).is_negligible(query, key, None, 0.25, infinite)
    assert not bounds_at(500, bias).is_negligible(query * torch.nan, key, None, 0.25, norms)
    assert not bounds_at(500, bias).is_negligible(query, key * torch.inf, None, 0.25, norms)
    flat = na.ALiBi(2, slopes=np.array([0.5, -0.1], np.float32))
    assert not bounds_at(10000, flat).is_negligible(query, key, None, 0.25, norms)
    assert not bounds_at(10000, flat).may_be_negligible
    assert bounds_at(500, bias).may_be_negligible
    assert not bounds_at(5, bias).may_be_negligible


def test_all_new_tokens_must_do_without_the_keys() -> None:
    bias = na.ALiBi(2, slopes=np.array([0.5, 0.1], np.float32))
    query, key, held = tokens(0)
    norms = na.KeyNorms().update(held)
    both = torch.cat([query, 80.0 * query], 2), torch.cat([key, key], 2)
    assert bounds_at(400, bias, new=2).is_negligible(
        torch.cat([query, query], 2), both[1], None, 0.25, norms
    )
    assert not bounds_at(400, bias, new=2).is_negligible(*both, None, 0.25, norms)

"""The study: each scheme learns, sees no future, and an interrupt changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import ntk_alibi as na
from ntk_alibi.models import study, training
from ntk_alibi.models.decoder import Decoder
from ntk_alibi.models.positions import SCHEMES, Place, View
from ntk_alibi.models.study import Plan, Recipe, Training

#: A few steps of a few tokens.
TINY = Recipe(
    train_length=96, start_length=64, steps=4, tokens=128, layers=1, hidden_size=32, heads=2,
    autocast=False,
)  # fmt: skip
TINY_PLAN = Plan(multiples=(1, 2), records=2, windows=2)


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def decoder(scheme: str, layers: int = 2, length: int = 32) -> Decoder:
    torch.manual_seed(0)
    place = Place(heads=4, hidden_size=32, train_length=length)
    return Decoder(50, layers, 32, 4, lambda: SCHEMES[scheme](place)).eval()


def some_tokens(rows: int = 2, length: int = 40) -> torch.Tensor:
    return torch.randint(50, (rows, length), generator=torch.Generator().manual_seed(1))


def test_no_token_sees_a_later_one(scheme: str) -> None:
    model, tokens = decoder(scheme), some_tokens()
    changed = tokens.clone()
    changed[:, 25:] = (changed[:, 25:] + 1) % 50
    torch.testing.assert_close(model(changed)[:, :25], model(tokens)[:, :25], rtol=0, atol=1e-6)
    assert (model(changed)[:, 25:] - model(tokens)[:, 25:]).abs().amax(dim=-1).min() > 1e-4


def test_every_parameter_gets_a_gradient(scheme: str) -> None:
    model = decoder(scheme)
    model(some_tokens()).logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            # softmax is blind to what all keys of a query have in common
            assert parameter.grad.any() or name.endswith("key.bias"), name


def test_a_step_lowers_the_loss_of_its_batch(scheme: str) -> None:
    model, tokens = decoder(scheme).train(), some_tokens(8)

    def loss() -> torch.Tensor:
        return torch.nn.functional.cross_entropy(
            model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        )

    before = loss()
    before.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.01 * parameter.grad
    assert loss() < before


def test_schemes_share_their_other_first_weights(scheme: str) -> None:
    own, others = decoder(scheme).state_dict(), decoder("none").state_dict()
    shared = {name for name in own if ".positions." not in name}
    assert shared == set(others)
    assert all(torch.equal(own[name], others[name]) for name in shared)


def test_logits_of_some_positions_are_those_of_all() -> None:
    model, tokens = decoder("alibi"), some_tokens()
    keep = torch.zeros(tokens.shape, dtype=torch.bool)
    keep[0, 3] = keep[1, 20] = True
    whole = model(tokens)
    torch.testing.assert_close(model(tokens, keep), whole[keep], rtol=0, atol=1e-6)


def by_torch(model: Decoder, tokens: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The same decoder by torch's own attention, a dense bias (heads, length, length) added."""
    x = model.embeddings_norm(model.word_embeddings(tokens))
    causal = torch.ones(tokens.shape[1], tokens.shape[1]).tril().bool()
    for layer in model.layers:
        normed = layer.attention_norm(x)
        query, key, value = (
            part(normed).unflatten(-1, (4, -1)).transpose(1, 2)
            for part in (layer.query, layer.key, layer.value)
        )
        attended = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=bias.masked_fill(~causal, -torch.inf)
        )
        x = x + layer.out(attended.transpose(1, 2).flatten(2))
        up = torch.nn.functional.gelu(layer.up(layer.feed_forward_norm(x)), approximate="tanh")
        x = x + layer.down(up)
    return model.final_norm(x) @ model.word_embeddings.weight.T


@pytest.mark.parametrize(("view", "factor"), [(View(), 1.0), (View(scaling=na.NTK(4.0)), 4.0)])
def test_alibi_is_torch_attention_with_a_dense_bias(view: View, factor: float) -> None:
    model, tokens = decoder("alibi"), some_tokens()
    model.view = view
    # four heads, flattest slope 8 / 32, the steepest 1 / 4 as it is: all are 1 / 4
    slopes = torch.tensor([0.25 * factor ** -(h / 3) if False else 0.25 for h in range(4)])
    distance = torch.arange(40)[:, None] - torch.arange(40)
    expected = by_torch(model, tokens, -slopes[:, None, None] * distance)
    torch.testing.assert_close(model(tokens), expected, rtol=0, atol=1e-5)

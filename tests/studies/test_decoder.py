"""The study's decoder and position schemes: causal, learnable, equal to torch's attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from studies.schemes.decoder import Decoder
from studies.schemes.schemes import SCHEMES, AttentionView, LayerShape

import ntk_alibi as na

pytestmark = pytest.mark.slow  # of a program beside the package


def decoder(scheme: str, layers: int = 2, length: int = 32) -> Decoder:
    torch.manual_seed(0)
    place = LayerShape(heads=4, hidden_size=32, train_length=length)
    return Decoder(50, layers, 32, 4, lambda: SCHEMES[scheme](place)).eval()


def some_tokens(rows: int = 2, length: int = 40) -> torch.Tensor:
    return torch.randint(50, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


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
            # softmax ignores a constant added to all scores of a query, and 1 = alpha^0 is constant
            without_effect = ("key.bias", "log_alpha") if "flat" in scheme else ("key.bias",)
            assert parameter.grad.any() or name.endswith(without_effect), name


def test_schemes_share_their_other_first_weights(scheme: str) -> None:
    own, others = decoder(scheme).state_dict(), decoder("none").state_dict()
    shared = {name for name in own if ".positions." not in name}
    assert shared == set(others)
    assert all(torch.equal(own[name], others[name]) for name in shared)


def by_torch(
    model: Decoder, tokens: torch.Tensor, bias: torch.Tensor, factors: torch.Tensor | float = 1.0
) -> torch.Tensor:
    """Compute the decoder with torch's attention and a dense bias (heads, length, length).

    Scores and bias are multiplied by factors (heads, length, 1).
    """
    x = model.embeddings_norm(model.word_embeddings(tokens))
    causal = torch.ones(tokens.shape[1], tokens.shape[1]).tril().bool()
    for layer in model.layers:
        normed = layer.attention_norm(x)
        query, key, value = (
            part(normed).unflatten(-1, (4, -1)).transpose(1, 2)
            for part in (layer.query, layer.key, layer.value)
        )
        attended = torch.nn.functional.scaled_dot_product_attention(
            query * factors, key, value, attn_mask=(bias * factors).masked_fill(~causal, -torch.inf)
        )
        x = x + layer.out(attended.transpose(1, 2).flatten(2))
        up = torch.nn.functional.gelu(layer.up(layer.feed_forward_norm(x)), approximate="tanh")
        x = x + layer.down(up)
    return model.final_norm(x) @ model.word_embeddings.weight.T


@pytest.mark.parametrize(
    "view",
    [
        AttentionView(),
        AttentionView(window=7),
        AttentionView(scaling=na.NTK(4.0)),
        AttentionView(scaling=na.FlatHeads(8.0)),
    ],
    ids=str,
)
def test_alibi_is_torch_attention_with_a_dense_bias(view: AttentionView) -> None:
    model, tokens = decoder("alibi", length=2048), some_tokens()  # long enough for BLOOM's slopes
    model.view = view
    distance = torch.arange(40)[:, None] - torch.arange(40)
    bias = -torch.tensor(na.alibi_slopes(4, view.scaling))[:, None, None] * distance
    if view.window is not None:
        bias = bias.masked_fill(distance >= view.window, -torch.inf)
    torch.testing.assert_close(model(tokens), by_torch(model, tokens, bias), rtol=0, atol=1e-5)


@pytest.mark.parametrize("window", [None, 7])
def test_ssmax_multiplies_score_and_prior_by_a_learned_log_n(window: int | None) -> None:
    model, tokens = decoder("bam-flat-ssmax", layers=1), some_tokens()
    model.view = AttentionView(window=window)
    positions: Any = model.layers[0].positions
    strength = torch.tensor([0.5, 1.0, 1.5, 2.0])
    with torch.no_grad():
        positions.strength.copy_(strength)
        positions.bias.beta.copy_(torch.tensor([0.0, 0.5, 1.0, -0.1]))
    distance = torch.arange(40)[:, None] - torch.arange(40)
    seen = torch.arange(1, 41).clamp(max=window or 40)
    beta = positions.bias.beta.detach()[:, None, None]
    prior = -((distance.clamp(min=0) + 1e-5) ** beta)  # alpha is 1
    if window is not None:
        prior = prior.masked_fill(distance >= window, -torch.inf)
    # a single visible key has weight 1 with any factor but 0, with which -inf would be NaN
    factors = strength[:, None, None] * seen.clamp(min=2).log()[:, None]
    expected = by_torch(model, tokens, prior, factors)
    torch.testing.assert_close(model(tokens), expected, rtol=0, atol=1e-5)


def test_a_window_as_long_as_the_text_and_log_n_within_the_training_change_nothing() -> None:
    for name in SCHEMES:
        model, tokens = decoder(name), some_tokens()
        with torch.no_grad():
            plain = model(tokens)
            for view in (
                AttentionView(window=40),
                AttentionView(causal_block=20),
                AttentionView(log_n=na.LogN(40)),
            ):
                model.view = view
                torch.testing.assert_close(model(tokens), plain, rtol=0, atol=1e-6)

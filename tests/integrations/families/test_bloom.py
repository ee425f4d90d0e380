"""BLOOM: patched models against transformers and an independent computation."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import BloomForCausalLM
from transformers.models.bloom import modeling_bloom

import ntk_alibi as na
from bloom_models import LOGITS, attentions, make_model
from model_runs import (
    GENERATIONS,
    assert_gradients_close,
    generate,
    gradients,
    prompt_masks,
)
from ntk_alibi.integrations.cache_argument import CACHE
from padded_batches import BATCH, LENGTH, MASKS, VOCABULARY, masks, real, run

head_counts = pytest.mark.parametrize("heads", [8, 12])

SCALINGS = {
    "none": None,
    "interpolation": na.Interpolation(2.0),
    "ntk": na.NTK(4.0),
    "dynamic": na.DynamicNTK(2.0, 16),
    "dynamic per query": na.DynamicNTK(2.0, 16, per="query"),
    "knee": na.Knee(6, 5.0),
}
scalings = pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)


def independent_logits(
    model: BloomForCausalLM, bloom_ids: torch.Tensor, mask: torch.Tensor | None, scaling: Any
) -> torch.Tensor:
    """Compute BLOOM in float64 row by row, without padding, with the reference's slopes."""
    config, logits = model.config, torch.zeros(*bloom_ids.shape, VOCABULARY, dtype=torch.float64)
    model = copy.deepcopy(model).double()
    heads, transformer = config.n_head, model.transformer
    for b, kept in enumerate(real(mask)):
        tokens = bloom_ids[b][kept]
        n = len(tokens)
        bias = torch.from_numpy(_independent_bias(heads, n, scaling))
        x = transformer.word_embeddings_layernorm(transformer.word_embeddings(tokens))
        for block in transformer.h:
            fused = block.self_attention.query_key_value(block.input_layernorm(x))
            q, k, v = fused.view(n, heads, 3, -1).permute(2, 1, 0, 3)
            weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + bias, dim=-1)
            x = x + block.self_attention.dense((weights @ v).transpose(0, 1).flatten(1))
            hidden = block.mlp.dense_h_to_4h(block.post_attention_layernorm(x))
            x = x + block.mlp.dense_4h_to_h(torch.nn.functional.gelu(hidden, approximate="tanh"))
        logits[b, kept] = model.lm_head(transformer.ln_f(x)).detach()
    return logits


def _independent_bias(heads: int, n: int, scaling: Any) -> np.ndarray:
    plain = na.reference.alibi_slopes(heads)
    if isinstance(scaling, na.Knee):
        bias = na.reference.knee_bias(plain, scaling.start, scaling.factor, n, n)[0]
        return np.where(na.reference.distances(n, n) < 0, -np.inf, bias)
    if scaling is None:
        slopes = plain
    elif isinstance(scaling, na.Interpolation):
        slopes = na.reference.interpolated_slopes(plain, scaling.factor)
    elif isinstance(scaling, na.NTK):
        slopes = na.reference.ntk_slopes(plain, scaling.factor)
    else:
        lengths = range(1, n + 1) if scaling.per == "query" else [n]
        factors = [na.reference.dynamic_factor(2.0, length, 16) for length in lengths]
        slopes = np.array([na.reference.ntk_slopes(plain, a) for a in factors]).T[None]
    return na.reference.linear_bias(slopes, np.full(heads, np.inf), n, n)[0]


@attentions
@scalings
@masks
@head_counts
def test_logits_equal_an_independent_computation(
    blooms: dict, bloom_ids: torch.Tensor, heads: int, mask: Any, scaling: Any, attention: Any
) -> None:
    model = blooms[heads]
    stock = run(model, bloom_ids, mask)
    with na.patch(model, scaling, attention=attention):
        patched = run(model, bloom_ids, mask)
    kept = real(mask)
    expected = independent_logits(model, bloom_ids, mask, scaling)
    torch.testing.assert_close(patched[kept].double(), expected[kept], **LOGITS)
    difference = (patched - stock)[kept].abs().max()
    assert difference < 1e-5 if scaling is None else difference > 1e-2
    assert torch.equal(run(model, bloom_ids, mask), stock)


@masks
@head_counts
def test_no_scaling_in_the_eager_form_keeps_every_bit(
    blooms: dict, bloom_ids: torch.Tensor, heads: int, mask: Any
) -> None:
    stock = run(blooms[heads], bloom_ids, mask)
    with na.patch(blooms[heads], attention="eager"):
        assert torch.equal(run(blooms[heads], bloom_ids, mask), stock)


def test_the_activation_is_the_same_formula(blooms: dict) -> None:
    gelu = blooms[8].transformer.h[0].mlp.gelu_impl
    x = torch.linspace(-9, 9, 4001).requires_grad_()
    stock = gelu(x)
    (slope,) = torch.autograd.grad(stock.sum(), [x])
    with na.patch(blooms[8]):
        ours = gelu(x)
        (other,) = torch.autograd.grad(ours.sum(), [x])
        # At most eight roundings of numbers up to 9; derivatives are sums of a few up to 1.2.
        torch.testing.assert_close(ours, stock, rtol=0, atol=8 * 2.0**-24 * 9)
        torch.testing.assert_close(other, slope, rtol=0, atol=2e-6)
        assert "forward" in vars(gelu)
        with na.patch(blooms[8], attention="eager"):
            assert torch.equal(gelu(x), stock)
    assert "forward" not in vars(gelu)


def test_the_published_way_misses_unpadded_prompts_and_ours_does_not(
    blooms: dict, bloom_ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published recipes replace the function, which works for masked calls only."""
    model, stock = blooms[8], run(blooms[8], bloom_ids)

    def published(mask: Any, heads: int, dtype: Any) -> Any:
        return na.build_alibi_tensor(mask, heads, dtype, na.NTK(4.0))

    monkeypatch.setattr(modeling_bloom, "build_alibi_tensor", published)
    masked = run(model, bloom_ids, MASKS["ones"])
    unmasked_follows = not torch.equal(run(model, bloom_ids), stock)
    monkeypatch.undo()
    with na.patch(model, na.NTK(4.0), attention="eager"):
        assert torch.equal(run(model, bloom_ids, MASKS["ones"]), masked)
        assert torch.equal(run(model, bloom_ids), masked)
    inlined = hasattr(modeling_bloom, "_get_alibi_slopes")  # transformers >= 5.21
    assert unmasked_follows != inlined


def test_the_plain_one_liner(
    blooms: dict, bloom_ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = run(blooms[8], bloom_ids, MASKS["left"])
    monkeypatch.setattr(modeling_bloom, "build_alibi_tensor", na.build_alibi_tensor)
    assert torch.equal(run(blooms[8], bloom_ids, MASKS["left"]), stock)


@attentions
@prompt_masks
@pytest.mark.parametrize("options", GENERATIONS, ids=str)
def test_generate(
    blooms: dict, bloom_ids: torch.Tensor, mask: Any, options: Any, attention: Any
) -> None:
    model = blooms[8]
    try:
        stock = generate(model, bloom_ids, mask, **options)
    except ValueError:
        # From 5.18 to 5.20 BLOOM cannot read the mask that generate() makes for a static cache.
        assert options == {"cache_implementation": "static"}
        assert mask is None
        assert not hasattr(modeling_bloom, "_get_alibi_slopes")  # new in 5.21
        pytest.skip(f"BLOOM has no static cache in transformers {transformers.__version__}")
    with na.patch(model, attention=attention):
        assert torch.equal(generate(model, bloom_ids, mask, **options), stock)
    for scaling in (na.NTK(8.0), na.DynamicNTK(4.0, 8, per="query")):
        with na.patch(model, scaling, attention=attention):
            tokens = generate(model, bloom_ids, mask, **options)
            full = generate(
                model, bloom_ids, mask, use_cache=False, num_beams=options.get("num_beams", 1)
            )
        assert torch.equal(tokens, full)
        assert not torch.equal(tokens, stock)


def cached_logits(model: Any, bloom_ids: torch.Tensor, splits: list[int]) -> torch.Tensor:
    """Return logits of all positions, computed piece by piece with a cache."""
    cache, pieces = transformers.DynamicCache(config=model.config), []
    for piece in bloom_ids.split(splits, dim=1):
        with torch.no_grad():
            pieces.append(model(piece, **{CACHE: cache}, use_cache=True).logits)
    return torch.cat(pieces, dim=1)


@attentions
@pytest.mark.parametrize("scaling", [None, na.NTK(4.0), na.DynamicNTK(2.0, 16, per="query")])
def test_pieces_with_a_cache_equal_one_full_pass(
    blooms: dict, bloom_ids: torch.Tensor, scaling: Any, attention: Any
) -> None:
    with na.patch(blooms[12], scaling, attention=attention):
        full = run(blooms[12], bloom_ids)
        for splits in ([39, 1], [1] * 40, [7, 20, 13]):
            torch.testing.assert_close(cached_logits(blooms[12], bloom_ids, splits), full, **LOGITS)


@attentions
def test_the_published_dynamic_rule_does_not_agree_with_its_own_cache(
    blooms: dict, bloom_ids: torch.Tensor, attention: Any
) -> None:
    """This is why per="query" exists: keys of deeper layers were made with an older factor."""
    with na.patch(blooms[8], na.DynamicNTK(2.0, 16), attention=attention):
        with pytest.warns(UserWarning, match="shorter one; per='query' agrees with its own cache"):
            cached = cached_logits(blooms[8], bloom_ids, [20, 20])
        difference = cached[:, -1] - run(blooms[8], bloom_ids)[:, -1]
    assert difference.abs().max() > 1e-3


@attentions
@scalings
def test_a_padded_row_equals_the_row_alone(
    blooms: dict, bloom_ids: torch.Tensor, scaling: Any, attention: Any
) -> None:
    mask = MASKS["left"]
    with na.patch(blooms[8], scaling, attention=attention):
        batch = run(blooms[8], bloom_ids, mask)
        for b, kept in enumerate(mask.bool()):
            alone = run(blooms[8], bloom_ids[b][kept][None])[0]
            torch.testing.assert_close(batch[b][kept], alone, **LOGITS)


@attentions
@prompt_masks
@pytest.mark.parametrize("scaling", [na.NTK(4.0), na.DynamicNTK(2.0, 16, per="query")], ids=repr)
def test_gradients_and_gradient_checkpointing(
    bloom_ids: torch.Tensor, mask: Any, scaling: Any, attention: Any
) -> None:
    # Logits at padding are undefined, so their labels are left out, too.
    labels = bloom_ids.masked_fill(~real(mask), -100)
    labels[:, 1:][~real(mask)[:, :-1]] = -100

    def of(attention: str, checkpointing: bool) -> list[torch.Tensor]:
        patch = {"scaling": scaling, "attention": attention}
        model = make_model(8, hidden_dropout=0.0, attention_dropout=0.0)
        return gradients(model, bloom_ids, mask, labels, checkpointing=checkpointing, **patch)

    expected = of("eager", False)
    for checkpointing in (False, True):
        assert_gradients_close(of(attention, checkpointing), expected)


def test_bfloat16_is_nearer_to_float32_than_stock() -> None:
    """Stock BLOOM rounds absolute positions to bfloat16, where 256 and 257 are the same."""
    model, bloom_ids = make_model(8), torch.randint(0, VOCABULARY, (1, 1024))
    exact = run(model, bloom_ids)
    half = copy.deepcopy(model).bfloat16()
    stock = (run(half, bloom_ids).float() - exact).square().mean()
    with na.patch(half):
        ours = (run(half, bloom_ids).float() - exact).square().mean()
    assert ours < 0.5 * stock


@attentions
def test_output_attentions(blooms: dict, bloom_ids: torch.Tensor, attention: Any) -> None:
    with torch.no_grad(), na.patch(blooms[8], na.NTK(4.0), attention=attention):
        outputs = blooms[8](bloom_ids, attention_mask=MASKS["left"], output_attentions=True)
        logits = run(blooms[8], bloom_ids, MASKS["left"])
    kept = real(MASKS["left"])
    torch.testing.assert_close(outputs.logits[kept], logits[kept], **LOGITS)
    assert len(outputs.attentions) == 3
    assert outputs.attentions[0].shape == (BATCH, 8, LENGTH, LENGTH)
    torch.testing.assert_close(outputs.attentions[0].sum(-1), torch.ones(BATCH, 8, LENGTH))


@attentions
def test_embeddings_positional_arguments_and_the_bare_model(
    blooms: dict, bloom_ids: torch.Tensor, attention: Any
) -> None:
    bare = blooms[8].transformer
    with torch.no_grad(), na.patch(bare, na.NTK(4.0), attention=attention):
        expected = bare(bloom_ids, attention_mask=MASKS["left"]).last_hidden_state
        positional = bare(bloom_ids, None, MASKS["left"]).last_hidden_state
        embedded = bare(
            inputs_embeds=bare.word_embeddings(bloom_ids), attention_mask=MASKS["left"].bool()
        ).last_hidden_state
    assert torch.equal(positional, expected)
    assert torch.equal(embedded, expected)

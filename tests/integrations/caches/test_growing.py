"""The growing cache compared with transformers' caches."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, DynamicCache

import ntk_alibi as na
from model_runs import batch, change_rows, generate, keys_and_values
from ntk_alibi.integrations.arguments import CACHE
from small_models import MAKERS, make_model


def model() -> Any:
    torch.manual_seed(0)
    config = BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)
    return BloomForCausalLM(config).eval()


MASK = (torch.arange(20) >= torch.tensor([[0], [7]])).long()
IDS = torch.randint(0, 64, (2, 20), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": False},
        {"num_beams": 3, "do_sample": False},
        {"do_sample": False, "attention_mask": MASK},
    ],
    ids=["greedy", "beams", "left padding"],
)
@pytest.mark.parametrize("capacity", [1, 25, 1000])
def test_generates_what_the_dynamic_cache_does(options: dict[str, Any], capacity: int) -> None:
    bloom = model()
    results = [
        bloom.generate(IDS, **{CACHE: cache}, max_new_tokens=12, **options)
        for cache in (DynamicCache(), na.GrowingCache(capacity))
    ]
    assert torch.equal(*results)


def test_prompt_lookup_crops() -> None:
    bloom = model()
    ids = torch.cat([IDS[:1], IDS[:1]], dim=1)
    options = {"max_new_tokens": 15, "do_sample": False, "prompt_lookup_num_tokens": 4}
    results = [
        bloom.generate(ids, **{CACHE: cache}, **options)
        for cache in (DynamicCache(), na.GrowingCache(30))
    ]
    assert torch.equal(*results)


def test_a_token_is_written_in_place_until_the_buffer_is_full() -> None:
    cache = na.GrowingCache(capacity=16)
    places = set()
    for token in range(40):
        keys, values = cache.update(*keys_and_values(1, token), 0)
        places.add(keys.data_ptr())
        assert keys.shape[2] == values.shape[2] == token + 1
    assert len(places) == 3  # 16, 34 and 70 tokens
    expected = torch.cat([keys_and_values(1, token)[0] for token in range(40)], dim=2)
    assert torch.equal(keys, expected)


def test_rows_can_be_selected_repeated_and_reordered() -> None:
    growing, dynamic = na.GrowingCache(64), DynamicCache()
    for cache in (growing, dynamic):
        change_rows(cache)
    assert torch.equal(growing.layers[0].keys, dynamic.layers[0].keys)
    assert torch.equal(growing.layers[0].values, dynamic.layers[0].values)


def test_a_copy_shares_nothing() -> None:
    cache = na.GrowingCache(64)
    cache.update(*keys_and_values(10), 0)
    other = copy.deepcopy(cache)
    other.update(*keys_and_values(1, 1), 0)
    cache.update(*keys_and_values(1, 2), 0)
    assert torch.equal(other.layers[0].keys[:, :, 10:], keys_and_values(1, 1)[0])


def test_norms_follow_the_keys() -> None:
    cache = na.GrowingCache(64)
    query = torch.randn(2, 3, 1, 8)
    for tokens in (100, 1, 1, 70):
        keys, values = cache.update(*keys_and_values(tokens, tokens), 0)
        layer = cache.layers[0]
        kept = na.attention(query, keys, values, na.ALiBi(3), key_norms=layer.norms())
        assert torch.equal(kept, na.attention(query, keys, values, na.ALiBi(3)))
    cache.crop(-50)
    assert layer.norms().length == 122
    cache.reset()
    assert cache.get_seq_length() == 0


def test_keys_that_require_grad_keep_their_graph() -> None:
    cache = na.GrowingCache(64)
    keys, values = (x.requires_grad_() for x in keys_and_values(4))
    cache.update(keys, values, 0)
    total, _ = cache.update(*keys_and_values(2, 1), 0)
    assert total.shape[2] == 6
    (gradient,) = torch.autograd.grad(total.sum(), keys)
    np.testing.assert_array_equal(gradient, np.ones((2, 3, 4, 8)))


def test_bad_capacity() -> None:
    with pytest.raises(ValueError, match="capacity must be between 1"):
        na.GrowingCache(0)


@pytest.mark.parametrize("dtype", [None, "int8"])
@pytest.mark.parametrize("shape", [(1, 3, 1, 8), (4, 3, 1, 8), (2, 1, 1, 8)])
def test_tokens_of_another_batch_are_refused(dtype: Any, shape: tuple[int, ...]) -> None:
    cache = na.GrowingCache(dtype=dtype)
    cache.update(torch.randn(2, 3, 4, 8), torch.randn(2, 3, 4, 8), 0)
    with pytest.raises(ValueError, match=rf"{CACHE} holds .* \(2, 3\), got"):
        cache.update(torch.randn(shape), torch.randn(shape), 0)
    assert cache.get_seq_length() == 4


@pytest.mark.parametrize("padded", [False, True])
def test_a_patched_model_keeps_norms_beside_its_keys(padded: bool) -> None:
    bloom = model()
    options = {"attention_mask": MASK} if padded else {}
    with na.patch(bloom, na.NTK(4.0)):
        tokens, cache = [], na.GrowingCache(24)
        for held in (DynamicCache(), cache):
            tokens.append(
                bloom.generate(IDS, **{CACHE: held}, max_new_tokens=90, do_sample=False, **options)
            )
    assert torch.equal(*tokens)
    measured = cache.layers[0]._norms.length
    assert measured == (0 if padded else cache.get_seq_length())


def test_a_patched_model_takes_it_under_autocast() -> None:
    bloom = model()
    with na.patch(bloom), torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        results = [
            bloom(IDS, **{CACHE: cache}, use_cache=True).logits
            for cache in (DynamicCache(), na.GrowingCache(8))
        ]
    assert torch.equal(*results)


def test_a_cache_that_was_filled_before_autocast_goes_on_under_it() -> None:
    """Its keys stay float32 beside queries of bfloat16.

    Each of two layers rounds some eight times, by 2^-9 of values like the logits.
    """
    bloom = model()
    with na.patch(bloom), torch.no_grad():
        expected = bloom(IDS).logits[:, 6:]
        error = 16 * 2.0**-9 * float(expected.abs().max())
        for cache in (DynamicCache(), na.GrowingCache(8)):
            bloom(IDS[:, :6], **{CACHE: cache}, use_cache=True)
            with torch.autocast("cpu", torch.bfloat16):
                logits = bloom(IDS[:, 6:], **{CACHE: cache}, use_cache=True).logits
            torch.testing.assert_close(logits.float(), expected, rtol=0, atol=error)


@pytest.mark.parametrize("attention", ["fused", "eager", "traceable"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_cache_in_a_call_that_has_none_is_refused(name: str, attention: Any) -> None:
    """An MPT's config sets use_cache=False: generate() then passes the whole text at each token."""
    model, ids = make_model(name), batch()
    with na.patch(model, "ntk:4", attention=attention):
        expected = generate(model, ids, None, use_cache=False)
        for make in (na.GrowingCache, DynamicCache):
            tokens = generate(model, ids, None, **{CACHE: make()}, use_cache=True)
            assert torch.equal(tokens, expected)
            with pytest.raises(
                ValueError,
                match=rf"use_cache must be True with {CACHE} in generate\(\), got False",
            ):
                generate(model, ids, None, **{CACHE: make()}, use_cache=False)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize(
    "make", [na.GrowingCache, lambda: na.GrowingCache(dtype="int8"), lambda: na.WindowCache(8, 2)]
)
def test_a_cache_that_was_begun_in_inference_mode_goes_on(make: Any, mode: Any) -> None:
    bloom, limits = model(), {}
    cache, other = make(), make()
    if isinstance(cache, na.WindowCache):
        limits = {"window": 8, "sink": 2}
    bloom.requires_grad_(False)
    with na.patch(bloom, **limits):
        with torch.inference_mode():
            bloom(IDS[:, :7], **{CACHE: cache}, use_cache=True)
        with torch.no_grad():
            bloom(IDS[:, :7], **{CACHE: other}, use_cache=True)
        for i in range(7, 20):
            token = IDS[:, i : i + 1]
            with mode():
                found = bloom(token, **{CACHE: cache}, use_cache=True).logits
            with torch.no_grad():
                expected = bloom(token, **{CACHE: other}, use_cache=True).logits
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", ["fused", "eager", "traceable"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_cache_is_read_by_a_call_that_keeps_none(name: str, attention: Any) -> None:
    """Of one token more than it holds, as generate() without a use of its cache passes."""
    patched, stock = make_model(name), make_model(name)
    na.patch(patched, attention=attention)
    found = []
    for x in (patched, stock):
        cache = DynamicCache()
        with torch.no_grad():
            x(IDS[:, :7], **{CACHE: cache}, use_cache=True)
            found.append(x(IDS[:, 7:15], **{CACHE: cache}, use_cache=False).logits)
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)

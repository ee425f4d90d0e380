"""The growing cache in int8: what it holds, and attention over the entries that it holds.

Passes that compute the same keys hold the same entries. A key that differs by float32 rounding may
be rounded to the next multiple of its scale, so models of one layer, whose keys depend on no
attention, are compared with each other.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, DynamicCache

import ntk_alibi as na
from model_runs import LOGITS, MASKS, batch, change_rows, keys_and_values, real
from ntk_alibi.integrations.arguments import CACHE
from small_models import MAKERS, make_model

HEAD_DIM = 64


states = partial(keys_and_values, head_dim=HEAD_DIM)


def rounded(x: torch.Tensor) -> torch.Tensor:
    rounded: torch.Tensor = na.QuantizedRows.of(x).dequantized(x.dtype)
    return rounded


def bloom(layers: int = 1) -> Any:
    torch.manual_seed(0)
    model = BloomForCausalLM(
        BloomConfig(vocab_size=64, hidden_size=128, n_layer=layers, n_head=8)
    ).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data.normal_(0, 0.08)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_readers_get_tensors_of_the_numbers_held(dtype: torch.dtype) -> None:
    cache, dynamic = na.GrowingCache(16, dtype="int8"), DynamicCache()
    for tokens in (20, 1, 1, 30):
        results = cache.update(*states(tokens, tokens, dtype=dtype), 0)
        expected = dynamic.update(*states(tokens, tokens, dtype=dtype), 0)
        for result, x in zip(results, expected, strict=True):
            assert result.dtype == dtype
            assert torch.equal(result, rounded(x))
    assert torch.equal(cache.layers[0].keys, results[0])
    assert torch.equal(cache.layers[0].values, results[1])
    assert cache.get_seq_length() == 52


def test_pieces_hold_what_one_pass_holds() -> None:
    whole, pieces = (na.GrowingCache(8, dtype="int8") for _ in range(2))
    key, value = states(40)
    expected = whole.append(key, value, 0)
    for begin in range(0, 40, 3):
        part = slice(begin, begin + 3)
        held = pieces.append(key[:, :, part], value[:, :, part], 0)
    for rows, other in zip(held, expected, strict=True):
        assert torch.equal(rows.numbers, other.numbers)
        assert torch.equal(rows.scales, other.scales)


def test_rows_can_be_selected_repeated_reordered_and_cropped() -> None:
    quantized, dynamic = na.GrowingCache(64, dtype="int8"), DynamicCache()
    for cache in (quantized, dynamic):
        change_rows(cache, HEAD_DIM)
    assert torch.equal(quantized.layers[0].keys, rounded(dynamic.layers[0].keys))
    assert torch.equal(quantized.layers[0].values, rounded(dynamic.layers[0].values))
    other = copy.deepcopy(quantized)
    other.update(*states(1, 4), 0)
    quantized.update(*states(1, 5), 0)
    assert torch.equal(other.layers[0].keys[:, :, -1:], rounded(states(1, 4)[0]))
    quantized.reset()
    assert quantized.get_seq_length() == 0
    assert quantized.update(*states(3), 0)[0].shape[2] == 3


def test_norms_follow_the_keys() -> None:
    cache, query, bias = (
        na.GrowingCache(64, dtype="int8"),
        torch.randn(2, 3, 1, HEAD_DIM),
        na.ALiBi(3),
    )
    for tokens in (100, 1, 1, 70):
        key, value = cache.append(*states(tokens, tokens), 0)
        kept = na.attention(query, key, value, bias, key_norms=cache.norms(0))
        assert torch.equal(kept, na.attention(query, key, value, bias))
    for change in (
        lambda: cache.crop(-50),
        lambda: cache.reorder_cache(torch.tensor([1, 0])),
        lambda: cache.batch_select_indices(torch.tensor([1])),
    ):
        change()
        rows = cache.append(*(x[: len(cache.layers[0].keys)] for x in states(1)), 0)
        fresh = na.KeyNorms().update(rows[0])
        blocks = -(-rows[0].shape[2] // 64)
        held = cache.norms(0).norms[:, :, :blocks]
        np.testing.assert_array_equal(held, fresh.norms[:, :, :blocks])


def bytes_of(value: Any) -> int:
    """Return the bytes of all tensors and arrays below an object, each memory once."""
    seen: dict[int, int] = {}

    def walk(x: Any) -> None:
        if isinstance(x, torch.Tensor):
            seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        elif isinstance(x, np.ndarray):
            seen[x.ctypes.data] = x.nbytes
        elif isinstance(x, list | tuple):
            for item in x:
                walk(item)
        elif hasattr(x, "__dict__"):
            walk(list(vars(x).values()))

    walk(value)
    return sum(seen.values())


def test_memory_is_a_quarter_and_the_scales() -> None:
    sizes = []
    for options in ({}, {"dtype": "int8"}):
        cache = na.GrowingCache(8192, **options)
        for layer in range(2):
            cache.append(*states(3000), layer)
            cache.norms(layer)
        sizes.append(bytes_of(cache))
    assert 0.25 < sizes[1] / sizes[0] < 0.27


def logits(model: Any, cache: Any, mask: str, pieces: tuple[int, ...]) -> torch.Tensor:
    ids, given, end, results = batch(), MASKS[mask], 0, []
    with torch.no_grad():
        for piece in pieces:
            begin, end = end, end + piece
            seen = None if given is None else given[:, :end]
            out = model(ids[:, begin:end], attention_mask=seen, **{CACHE: cache}, use_cache=True)
            results.append(out.logits.float())
    return torch.cat(results, 1)[real(given)]


@pytest.mark.parametrize("limit", [{}, {"window": 9, "sink": 3}], ids=["all", "window"])
@pytest.mark.parametrize("mask", ["none", "left", "holes"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_forms_read_the_same_numbers(dtype: torch.dtype, mask: str, limit: Any) -> None:
    model, pieces, results = bloom().to(dtype), (17, 1, 1, 15, 2, 4), {}
    for form in ("fused", "eager"):
        with na.patch(model, na.NTK(4.0), attention=form, **limit):
            results[form] = logits(model, na.GrowingCache(16, dtype="int8"), mask, pieces)
            unrounded = logits(model, na.GrowingCache(16), mask, pieces)
    bound = LOGITS if dtype == torch.float32 else {"atol": 2.0**-4, "rtol": 2.0**-6}
    torch.testing.assert_close(results["fused"], results["eager"], **bound)
    assert 0 < (results["eager"] - unrounded).abs().max() < 0.1


@pytest.mark.parametrize(
    "options",
    [{}, {"num_beams": 3}, {"attention_mask": MASKS["left"]}, {"prompt_lookup_num_tokens": 4}],
    ids=["greedy", "beams", "left padding", "prompt lookup"],
)
def test_patched_and_stock_models_generate_the_same(options: dict[str, Any]) -> None:
    model, ids = bloom(), batch()
    if "prompt_lookup_num_tokens" in options:
        ids = torch.cat([ids[:1], ids[:1]], dim=1)
    options = {"do_sample": False, "max_new_tokens": 30, **options}
    stock = model.generate(ids, **{CACHE: na.GrowingCache(16, dtype="int8")}, **options)
    with na.patch(model):
        cache = na.GrowingCache(16, dtype="int8")
        assert torch.equal(model.generate(ids, **{CACHE: cache}, **options), stock)


@pytest.mark.parametrize("name", MAKERS)
def test_every_family_is_close_to_its_unrounded_self(name: str) -> None:
    model = make_model(name)
    with na.patch(model, na.NTK(2.0)):
        results = [
            logits(model, na.GrowingCache(16, **options), "left", (20, 1, 19))
            for options in ({}, {"dtype": "int8"})
        ]
    difference = (results[1] - results[0]).abs().max()
    assert 0 < difference < 0.05 * results[0].abs().max()


def test_autocast_takes_torchs_way() -> None:
    model = bloom()
    with na.patch(model), torch.autocast("cpu"):
        cache = na.GrowingCache(16, dtype="int8")
        result = logits(model, cache, "none", (30, 1, 9))
    expected = logits(model, na.GrowingCache(16, dtype="int8"), "none", (30, 1, 9))
    torch.testing.assert_close(result, expected, atol=2.0**-4, rtol=2.0**-6)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="dtype must be None or 'int8', got 'int4'"):
        na.GrowingCache(dtype="int4")  # type: ignore[arg-type]
    model, cache = bloom(), na.GrowingCache(dtype="int8")
    with na.patch(model), pytest.raises(ValueError, match="where torch records, transforms"):
        model(batch(), **{CACHE: cache}, use_cache=True)
    with pytest.raises(ValueError, match="dtype must be None in a GrowingCache where torch rec"):
        cache.update(*(x.requires_grad_() for x in states(3)), 0)
    cache.update(*states(3), 0)
    with pytest.raises(TypeError, match="keys of a quantized layer must come by update"):
        cache.layers[0].keys = states(3)[0]


def test_the_fused_form_reads_them_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bloom()
    with na.patch(model):
        expected = logits(model, na.GrowingCache(16, dtype="int8"), "left", (30, 1, 9))
        monkeypatch.delattr(na.QuantizedRows, "dequantized")
        assert torch.equal(
            logits(model, na.GrowingCache(16, dtype="int8"), "left", (30, 1, 9)), expected
        )

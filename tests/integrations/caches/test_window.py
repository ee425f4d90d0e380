"""Windows, blocks and sinks of patched models, and the cache of sinks and window."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

import ntk_alibi as na
from model_runs import LENGTH, LOGITS, MASKS, generate, keys_and_values, run
from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.integrations.forward_pass import ranges_of
from ntk_alibi.masks import Mask, Problem
from small_models import MAKERS, VOCABULARY, families, make_model
from table_families import STATIC_NEEDS

WINDOW, SINK = 9, 3
FORMS = list(itertools.product(("bloom", "mpt", "falcon"), ("fused", "eager")))
forms = pytest.mark.parametrize(("name", "attention"), FORMS)
SCALING = na.NTK(4.0)
sinks = pytest.mark.parametrize("sink", [0, SINK])


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: make_model(name, max_seq_len=400) if name == "mpt" else make_model(name)
            for name in MAKERS}  # fmt: skip


@pytest.mark.parametrize(
    "limit",
    [
        dict(zip(("window", "sink", "causal_block"), choice, strict=True))
        for choice in itertools.product((None, 1, 2, 5, 40), (0, 1, 3), (None, 1, 4, 40))
    ],
    ids=str,
)
def test_distances_are_counted_among_what_is_seen(limit: dict[str, Any]) -> None:
    distances = np.full((24, 24), np.inf)
    for keys, part in ranges_of(Problem((1, 1, 24, 24), Mask(**limit))):
        at_queries, at_keys = part.positions()
        seen = part.mask.visible(at_queries, at_keys)[0]
        among = at_queries[0][:, None] - at_keys[0]
        distances[:, keys] = np.where(seen, among, distances[:, keys])
    np.testing.assert_array_equal(distances, na.reference.streaming_distances(24, **limit))


def stock_with_a_cache_cut_by_hand(
    model: Any, ids: torch.Tensor, window: int, sink: int
) -> torch.Tensor:
    """Run transformers' model token by token, removing the evicted keys before each token."""
    cache, logits = DynamicCache(), []
    for token in ids.T:
        for layer in cache.layers:
            extra = layer.keys.shape[2] - (sink + window - 1)
            if extra > 0:
                for name in ("keys", "values"):
                    x = getattr(layer, name)
                    setattr(layer, name, torch.cat([x[:, :, :sink], x[:, :, sink + extra :]], 2))
        mask = torch.ones((len(ids), cache.get_seq_length() + 1), dtype=torch.long)
        with torch.no_grad():
            out = model(token[:, None], attention_mask=mask, **{CACHE: cache}, use_cache=True)
        logits.append(out.logits)
    return torch.cat(logits, dim=1)


@forms
@sinks
def test_one_pass_equals_transformers_on_a_cut_cache(
    models: dict, ids: torch.Tensor, name: str, attention: Any, sink: int
) -> None:
    """The comparison implements sinks and windows as Xiao et al. do, without this package."""
    expected = stock_with_a_cache_cut_by_hand(models[name], ids, WINDOW, sink)
    with na.patch(models[name], attention=attention, window=WINDOW, sink=sink):
        logits = run(models[name], ids)
    torch.testing.assert_close(logits, expected, **LOGITS)
    assert (logits - run(models[name], ids)).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("name", "sink", "options", "padded"),
    [
        *((name, SINK, {}, True) for name in MAKERS),
        pytest.param("bloom", 0, {}, False, marks=pytest.mark.needs(*STATIC_NEEDS)),
        ("mpt", 0, {}, False),
        ("falcon", SINK, {}, False),
        ("bloom", SINK, {"num_beams": 3}, False),
        ("falcon", 0, {"num_beams": 3}, True),
        ("mpt", SINK, {"prefill_chunk_size": 16}, False),
        ("bloom", 0, {"prefill_chunk_size": 16}, True),
    ],
    ids=str,
)
def test_generate_in_bounded_memory(
    models: dict, ids: torch.Tensor, name: str, sink: int, options: Any, padded: bool
) -> None:
    mask = MASKS["left"] if padded else None
    model, new = models[name], {"max_new_tokens": 16}
    with na.patch(model, na.NTK(2.0), window=WINDOW, sink=sink):
        beams = {"num_beams": options.get("num_beams", 1)}
        full = generate(model, ids, mask, use_cache=False, **new, **beams)
        caches = [na.WindowCache(WINDOW, sink), na.GrowingCache(16), DynamicCache()]
        for cache in caches:
            tokens = generate(model, ids, mask, **{CACHE: cache}, **new, **options)
            assert torch.equal(tokens, full)
        if not options and not name.startswith("falcon"):  # which takes none in generate()
            static = generate(model, ids, mask, cache_implementation="static", **new)
            assert torch.equal(static, full)
    held = [cache.layers[0].keys.shape[2] for cache in caches]
    assert held[0] == WINDOW + sink
    assert held[1] == LENGTH + 15


@forms
@sinks
@pytest.mark.parametrize("pieces", [[1] * 60, [5, 1, 3, 2, 20, 1, 7, 12, 9], [59, 1]], ids=str)
def test_pieces_equal_one_pass(
    models: dict, name: str, attention: Any, sink: int, pieces: list[int]
) -> None:
    model = models[name]
    ids = torch.randint(0, VOCABULARY, (3, 60), generator=torch.Generator().manual_seed(2))
    mask = (torch.arange(60) >= torch.tensor([[0], [11], [27]])).long()
    with torch.no_grad(), na.patch(model, SCALING, attention=attention, window=7, sink=sink):
        for given in (None, mask):
            whole, cache, logits, end = run(model, ids, given), na.WindowCache(7, sink), [], 0
            for piece in pieces:
                begin, end = end, end + piece
                seen = None if given is None else given[:, :end]
                options = {"attention_mask": seen, CACHE: cache, "use_cache": True}
                logits.append(model(ids[:, begin:end], **options).logits)
                assert cache.layers[0].keys.shape[2] == min(end, 7 + sink)
            kept = slice(None) if given is None else given.bool()
            torch.testing.assert_close(torch.cat(logits, 1)[kept], whole[kept], **LOGITS)


@pytest.mark.parametrize(
    ("name", "length"),
    [("mpt", 300), ("bloom", 300), pytest.param("falcon", 2000, marks=pytest.mark.slow)],
)
def test_generation_without_end(name: str, length: int) -> None:
    """Tokens are written to one buffer of 2 (window + sink); logits equal the uncached pass."""
    window, sink = 24, 4
    model = make_model(name, 2)
    ids = torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(3))
    cache, logits, places = na.WindowCache(window, sink), [], set()
    with torch.no_grad(), na.patch(model, window=window, sink=sink):
        for token in range(length):
            out = model(ids[:, token : token + 1], **{CACHE: cache}, use_cache=True)
            logits.append(out.logits)
            keys = cache.layers[1].keys
            places.add(keys.untyped_storage().data_ptr())
            entries = keys.shape[1] * 2 * (window + sink) * 16
            assert keys.untyped_storage().nbytes() == 4 * entries
        whole = run(model, ids)
    assert len(places) == 1
    assert cache.get_seq_length() == length
    assert bool(torch.isfinite(whole).all())
    torch.testing.assert_close(torch.cat(logits, 1), whole, **LOGITS)


@sinks
@pytest.mark.parametrize("recorded", [False, True])
def test_what_is_held_are_the_first_and_the_last(sink: int, recorded: bool) -> None:
    cache, keys, values = na.WindowCache(7, sink), [], []
    for seed, tokens in enumerate([3, 1, 1, 4, 1, 1, 1, 12, 1, 30, 1, 1, *[1] * 40]):
        new = [x.requires_grad_(recorded) for x in keys_and_values(tokens, seed)]
        cache.update(*new, 0)
        keys.append(new[0])
        values.append(new[1])
        whole = torch.cat(keys, 2), torch.cat(values, 2)
        for held, x in zip((cache.layers[0].keys, cache.layers[0].values), whole, strict=True):
            kept = list(range(x.shape[2]))
            kept = kept if len(kept) <= 7 + sink else kept[:sink] + kept[-7:]
            assert torch.equal(held, x[:, :, kept])
    if recorded:
        (gradient,) = torch.autograd.grad(cache.layers[0].keys.sum(), keys[0])
        assert gradient.sum() == sink * 2 * 3 * 8


def test_rows_can_be_selected_repeated_and_reordered() -> None:
    cache = na.WindowCache(7, 2)
    cache.update(*keys_and_values(20), 0)
    cache.update(*keys_and_values(1, 1), 0)
    before = cache.layers[0].keys
    other = copy.deepcopy(cache)
    cache.reorder_cache(torch.tensor([1, 0]))
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 3]))
    assert torch.equal(cache.layers[0].keys, before[[1, 0]])
    cache.update(*keys_and_values(1, 2), 0)
    assert torch.equal(cache.layers[0].keys[:, :, :2], before[[1, 0], :, :2])
    assert torch.equal(cache.layers[0].keys[:, :, 2:8], before[[1, 0], :, 3:])
    other.shared.padding = torch.tensor([1, 2])
    assert cache.shared.padding is None
    assert other.layers[0]._shared is other.shared
    assert torch.equal(other.layers[0].keys, before)
    cache.reset()
    assert cache.get_seq_length() == 0
    assert cache.update(*keys_and_values(3), 0)[0].shape[2] == 3


@torch.no_grad()
@pytest.mark.parametrize("rows", [[1], [0, 1], [1, 1]])
def test_selected_rows_keep_their_padding(rows: list[int]) -> None:
    """A row that had no padding goes on without a mask, or with one, as it does alone."""
    model, ids = make_model("bloom"), torch.arange(24).reshape(2, 12) + 3
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    step, index = torch.tensor([[5], [6]]), torch.tensor(rows)
    with na.patch(model, window=5):
        cache, alone = na.WindowCache(5), na.WindowCache(5)
        model(ids, attention_mask=mask, **{CACHE: cache})
        cache.batch_select_indices(index)
        model(ids[index], attention_mask=mask[index], **{CACHE: alone})
        whole = torch.nn.functional.pad(mask[index], (0, 1), value=1)
        expected = model(step[index], attention_mask=whole, **{CACHE: alone}).logits
        found = model(step[index], attention_mask=whole, **{CACHE: cache}).logits
        torch.testing.assert_close(found, expected, **LOGITS)


def test_cropping_ends_when_a_token_has_left() -> None:
    cache = na.WindowCache(7, 2)
    cache.update(*keys_and_values(9), 0)
    cache.crop(-4)
    assert cache.get_seq_length() == 5
    cache.update(*keys_and_values(5, 1), 0)
    with pytest.raises(ValueError, match="after 10 tokens, of which 9 are held: use GrowingCache"):
        cache.crop(-1)


def test_merging_is_differentiable() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn((3, 1, 2, 5, 4), dtype=torch.float64, generator=generator)
    logs = torch.randn((3, 1, 2, 5), dtype=torch.float64, generator=generator)
    logs[1:, :, 0, :2] = logs[0, :, 0, 0] = -torch.inf
    plain = na.merge(list(outputs.numpy()), list(logs.numpy()))
    inputs = (outputs.requires_grad_(), logs[:, :, 1:].clone().requires_grad_())
    for ours, expected in zip(na.merge(list(outputs), list(logs)), plain, strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), expected, rtol=1e-6)

    def merged(outputs: torch.Tensor, tail: torch.Tensor) -> torch.Tensor:
        return na.merge(list(outputs[:, :, 1:]), list(tail))[0]

    assert torch.autograd.gradcheck(merged, inputs)
    logs.requires_grad_()
    na.merge(list(outputs), list(logs))[0].sum().backward()
    assert bool(logs.grad is not None and logs.grad.isfinite().all())


def test_bad_caches(models: dict, ids: torch.Tensor) -> None:
    model = models["bloom"]
    with pytest.raises(ValueError, match="window must be between 1 and"):
        na.WindowCache(0)
    with pytest.raises(ValueError, match="sink must be between 0 and"):
        na.WindowCache(4, -1)
    for limit in ({}, {"window": 9}, {"window": 8, "sink": 3}, {"causal_block": 6, "sink": 3}):
        with (
            na.patch(model, **limit),
            pytest.raises(ValueError, match=r"got WindowCache\(9, 3\) with window="),
        ):
            run(model, ids, **{CACHE: na.WindowCache(9, 3)})
    with na.patch(model, window=9, sink=3) as handle:
        assert "attention='fused', window=9, sink=3, in force" in repr(handle)
        for mask in ("right", "holes"):
            with pytest.raises(ValueError, match=r"padding on the left only .* in rows \[0"):
                run(model, ids, MASKS[mask], **{CACHE: na.WindowCache(9, 3)})
        cache = na.WindowCache(9, 3)
        run(model, ids, MASKS["left"], **{CACHE: cache})
        with pytest.raises(ValueError, match="must be given again with a WindowCache"):
            run(model, ids[:, :1], **{CACHE: cache})


@families
def test_models_without_a_patch_are_refused(models: dict, ids: torch.Tensor, name: str) -> None:
    model, cache = models[name], na.WindowCache(WINDOW, SINK)
    message = rf"{CACHE} must not be a WindowCache .* na\.patch\(model, window=window"
    for mask in (None, MASKS["left"]):
        with pytest.raises(ValueError, match=message):
            generate(model, ids, mask, **{CACHE: na.WindowCache(WINDOW, SINK)}, use_cache=True)
    with na.patch(model, window=WINDOW, sink=SINK):
        expected = generate(model, ids, None, **{CACHE: cache}, use_cache=True)
    if name != "falcon":  # whose own mask and bias do not fit to one another then
        with pytest.raises(ValueError, match=message):
            model(ids[:, :1], **{CACHE: cache}, use_cache=True)
    cache.reset()
    with pytest.raises(ValueError, match=message):
        model(ids, **{CACHE: cache}, use_cache=True)
    with na.patch(model, window=WINDOW, sink=SINK):
        own = {CACHE: copy.deepcopy(cache), "use_cache": True}
        assert torch.equal(generate(model, ids, None, **own), expected)

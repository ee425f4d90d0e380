"""Masks of four dimensions that callers give to patched models."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, create_mask
from transformers import DynamicCache

import ntk_alibi as na
from model_runs import LOGITS
from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.masks import Mask
from small_models import toy_family, toy_model
from table_families import model_of

TOKENS, ROWS = 12, 2
IDS = torch.arange(ROWS * TOKENS).reshape(ROWS, TOKENS) % 17 + 3
COLUMNS = torch.arange(TOKENS)
CAUSAL = COLUMNS[:, None] >= COLUMNS
RANDOM = torch.rand(ROWS, 1, TOKENS, TOKENS, generator=torch.Generator().manual_seed(0)) > 0.4

#: Masks; every query sees a key, since stock models see all keys where they see none.
KINDS = {
    "causal": CAUSAL.expand(ROWS, 1, -1, -1),
    "prefix": (CAUSAL | (COLUMNS < 4)).expand(1, 1, -1, -1),
    "random": RANDOM | torch.eye(TOKENS, dtype=torch.bool),
    "keys alone": (RANDOM[:, :, :1] | (COLUMNS == 0)).contiguous(),
}
newer = pytest.mark.needs("transformers >= 5.24", "5.4 refuses masks of four dimensions here")
MODELS = [
    "mpt",
    "t5",
    "t5, encoder",
    pytest.param("umt5", marks=newer),
    pytest.param("mpnet", marks=newer),
    "pix2struct",
]


def added(mask: torch.Tensor) -> torch.Tensor:
    """Return a mask as values to add to scores."""
    return torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)


def run(model: Any, mask: torch.Tensor | None, **others: Any) -> torch.Tensor:
    if model.config.is_encoder_decoder and not others:
        others = {"decoder_input_ids": IDS}
    output: torch.Tensor = model(IDS, attention_mask=mask, **others)[0]
    return output


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_a_patched_model_gives_what_stock_gives(name: str, kind: str) -> None:
    model, mask = model_of(name).eval(), KINDS[kind]
    stock = run(copy.deepcopy(model), added(mask))
    for attention in ("fused", "eager"):
        with na.patch(model, attention=attention):
            for given in (mask, added(mask), added(mask).double()):
                torch.testing.assert_close(run(model, given), stock, **LOGITS)


@torch.no_grad()
def test_a_decoder_takes_one_of_itself_and_one_of_its_encoder() -> None:
    stock = model_of("t5").eval().decoder
    ours = copy.deepcopy(stock)
    states = torch.randn(ROWS, 7, stock.config.d_model, generator=torch.Generator().manual_seed(1))
    crossing = torch.rand(ROWS, 1, TOKENS, 7, generator=torch.Generator().manual_seed(2)) > 0.3
    crossing[..., 0] = True
    given = {
        "attention_mask": added(KINDS["prefix"]),
        "encoder_hidden_states": states,
        "encoder_attention_mask": added(crossing),
    }
    with na.patch(ours):
        torch.testing.assert_close(ours(IDS, **given)[0], stock(IDS, **given)[0], **LOGITS)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["prefix", "random"])
def test_bloom_measures_distances_by_columns(kind: str) -> None:
    """Its own model raises with such a mask, since it builds the bias of one of two dimensions."""
    model, mask = model_of("bloom").eval(), KINDS[kind]
    stock = copy.deepcopy(model)
    inner: Any = stock.transformer
    build, every = inner.build_alibi_tensor, torch.ones(ROWS, TOKENS)
    inner.build_alibi_tensor = lambda _, heads, dtype: build(every, heads, dtype)
    expected = run(stock, added(mask))
    with na.patch(model):
        torch.testing.assert_close(run(model, mask), expected, **LOGITS)
        scaled = run(model, mask)
    with na.patch(model, na.NTK(4.0)):
        assert (run(model, mask) - scaled).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("rising", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
def test_the_mask_alone_says_what_is_seen_at_any_positions(ahead: bool, rising: bool) -> None:
    """Positions that do not rise with the columns are distances, and hide nothing."""
    generator = torch.Generator().manual_seed(3)
    at = torch.stack([torch.randperm(TOKENS, generator=generator) for _ in range(ROWS)])
    at = at.sort(dim=-1).values * 2 if rising else at
    model, mask = model_of("bloom").eval(), KINDS["random"]
    mask = mask if ahead else mask & CAUSAL
    stock = copy.deepcopy(model)
    inner: Any = stock.transformer
    slopes = na.alibi_slopes(inner.num_heads)
    bias = torch.from_numpy(slopes)[:, None] * at[:, None]
    inner.build_alibi_tensor = lambda *_, **__: bias.flatten(0, 1)[:, None]
    expected = run(stock, added(mask))
    for attention in ("fused", "eager"):
        with na.patch(model, attention=attention):
            torch.testing.assert_close(run(model, mask, position_ids=at), expected, **LOGITS)


@torch.no_grad()
@pytest.mark.parametrize("limits", [{}, {"window": 3}, {"window": 3, "sink": 2}], ids=str)
@pytest.mark.parametrize("name", ["bloom", "falcon", "mpt"])
def test_all_forms_and_limits_agree(name: str, limits: dict[str, int]) -> None:
    """A key is visible if the mask and the window show it, ahead of the query, too."""
    model = model_of(name).eval()
    positions = COLUMNS.expand(ROWS, -1)
    for kind in ("causal", "prefix", "random"):
        found = []
        for attention in ("fused", "eager"):
            with na.patch(model, na.NTK(2.0), attention=attention, **limits):
                found.append(run(model, KINDS[kind]))
                found.append(run(model, KINDS[kind], position_ids=positions))
        for other in found[1:]:
            torch.testing.assert_close(other, found[0], **LOGITS)
    if not limits:
        return
    seen = Mask.checked(False, limits["window"], None, limits.get("sink", 0)).visible(
        COLUMNS[None], COLUMNS[None]
    )
    with na.patch(model, **limits):
        limited = run(model, KINDS["random"])
        torch.testing.assert_close(run(model, KINDS["random"] & seen[:, None]), limited, **LOGITS)


@torch.no_grad()
@pytest.mark.parametrize("causal", [False, True])
def test_keys_alone_are_padding_in_layers_of_others(causal: bool) -> None:
    """Such layers add a mask of keys to a causal one of their own."""
    model, padding = toy_model(causal), torch.ones(ROWS, TOKENS)
    padding[0, -3:] = 0
    hidden = model.embed(IDS)
    with na.patch(model, family=toy_family(causal)):
        expected = model.attentions[0](hidden, padding)[padding != 0]
        for given in (padding[:, None, None] != 0, added(padding[:, None, None] != 0)):
            found = model.attentions[0](hidden, given)[padding != 0]
            torch.testing.assert_close(found, expected, **LOGITS)


@torch.no_grad()
@pytest.mark.parametrize(
    "positions",
    [torch.arange(5), torch.full((2, 12), -1), torch.full((2, 12), 0.5), torch.arange(36)[None]],
)
def test_wrong_positions_are_named(positions: torch.Tensor) -> None:
    model = model_of("bloom").eval()
    with na.patch(model), pytest.raises(ValueError, match="position_ids must"):
        run(model, KINDS["causal"], position_ids=positions)


def test_gradients_are_those_of_stock() -> None:
    model, mask = model_of("mpt"), added(KINDS["prefix"])
    stock = copy.deepcopy(model)
    run(stock, mask).square().sum().backward()
    with na.patch(model):
        run(model, mask).square().sum().backward()
    for ours, theirs in zip(model.parameters(), stock.parameters(), strict=True):
        largest = theirs.grad.abs().max()
        assert (ours.grad - theirs.grad).abs().max() <= 1e-5 * max(largest, 1.0)


@torch.no_grad()
@pytest.mark.parametrize("name", ["bloom", "falcon"])
def test_a_tree_of_drafts_over_a_cache(name: str) -> None:
    """Three branches after a prompt, in one pass: each gets what it would get alone."""
    model = model_of(name).eval()
    parents = [-1, -1, 0, 0, 1, 2]  # of each draft; the branches are 0 2 5, 0 3 and 1 4
    drafts = torch.tensor([[5, 6, 7, 8, 9, 4]])
    seen = torch.zeros(1, 1, 6, TOKENS + 6, dtype=torch.bool)
    seen[..., :TOKENS] = True
    depths = torch.zeros(6, dtype=torch.long)
    for draft, parent in enumerate(parents):
        if parent >= 0:
            seen[..., draft, TOKENS:] = seen[..., parent, TOKENS:]
            depths[draft] = depths[parent] + 1
        seen[..., draft, TOKENS + draft] = True
    with na.patch(model, na.NTK(2.0)):
        kept = model.generate(
            IDS[:1], max_new_tokens=1, do_sample=False, return_dict_in_generate=True, use_cache=True
        )
        cache = getattr(kept, "past_key_values", None)
        prompt = kept.sequences[:, :TOKENS]
        assert cache.get_seq_length() == TOKENS
        given = {"position_ids": TOKENS + depths[None], CACHE: cache, "use_cache": True}
        tree = model(drafts, attention_mask=seen, **given).logits
        for branch in ([0, 2, 5], [0, 3], [1, 4]):
            alone = model(torch.cat([prompt, drafts[:, branch]], dim=1)).logits
            torch.testing.assert_close(tree[:, branch], alone[:, TOKENS:], **LOGITS)


@torch.no_grad()
def test_a_mask_that_changed_is_read_again() -> None:
    model, mask = model_of("mpt").eval(), KINDS["random"].clone()
    with na.patch(model):
        first = run(model, mask)
        assert torch.equal(run(model, mask), first)
        mask[..., 1:] &= CAUSAL[:, 1:]
        assert torch.equal(run(model, mask), run(model, mask.clone()))
        assert not torch.equal(run(model, mask), first)


SIZES = r"\(batch, keys\) = \(2, 12\), or, with four dimensions, \(2 or 1, \d or 1, 12, 12\)"
VALUES = "must be 0 for visible keys and below -1000 for hidden ones, .*: a bias is no mask"
PAIRS = TOKENS, TOKENS


@torch.no_grad()
@pytest.mark.parametrize("name", ["bloom", "mpt", "t5, encoder", "mpnet"])
@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(ROWS, 1, TOKENS, TOKENS - 1) > 0, rf"{SIZES}, got \(2, 1, 12, 11\)"),
        (torch.ones(3, 1, *PAIRS) > 0, rf"{SIZES}, got \(3, 1, 12, 12\)"),
        (torch.ones(ROWS, 3, *PAIRS) > 0, rf"{SIZES}, got \(2, 3, 12, 12\)"),
        (torch.full((ROWS, 1, *PAIRS), -5.0), VALUES),
        (torch.full((ROWS, 1, *PAIRS), float("nan")), VALUES),
    ],
    ids=["keys", "rows", "heads", "a bias", "NaN"],
)
def test_wrong_masks_are_named(name: str, mask: torch.Tensor, message: str) -> None:
    model = model_of(name).eval()
    with na.patch(model), pytest.raises(ValueError, match=message):
        run(model, mask)


@torch.no_grad()
@pytest.mark.parametrize(
    "name", ["bloom", "mpt", "t5, encoder", pytest.param("mpnet", marks=newer)]
)
def test_other_masks_are_told_what_to_pass(name: str) -> None:
    model, sizes = model_of(name).eval(), (1, 1, TOKENS, TOKENS)
    flex = create_block_mask(lambda b, h, i, j: i >= j, *sizes, device="cpu")
    with na.patch(model):
        with pytest.raises(TypeError, match=r"pass create_mask\(attention_mask\.mask_mod, B, H, Q"):
            run(model, cast(Any, flex))
        booleans = create_mask(flex.mask_mod, *sizes, device="cpu")
        assert torch.equal(booleans[0, 0], CAUSAL)
        torch.testing.assert_close(run(model, booleans), run(model, KINDS["causal"]), **LOGITS)
        if name in ("bloom", "mpt"):  # transformers asks the others for their axes first
            with pytest.raises(TypeError, match="attention_mask must be None or a tensor, got Blo"):
                run(model, cast(Any, na.BlockMask(booleans)))


@torch.no_grad()
def test_a_mask_is_of_all_keys_of_a_cache() -> None:
    model, cache = model_of("mpt").eval(), DynamicCache()
    with na.patch(model):
        model(IDS, **{CACHE: cache}, use_cache=True)
        mask = torch.ones(ROWS, 1, 1, 1) > 0
        with pytest.raises(ValueError, match=r"\(batch, keys\) = \(2, 13\), .* got \(2, 1, 1, 1\)"):
            model(IDS[:, :1], attention_mask=mask, **{CACHE: cache}, use_cache=True)
    with na.patch(model, window=4):
        cache = na.WindowCache(4)
        with pytest.raises(ValueError, match=r"attention_mask must have shape .* a WindowCache"):
            model(IDS, attention_mask=KINDS["causal"], **{CACHE: cache}, use_cache=True)

"""Masks of four dimensions that callers give to patched models whose distances count columns."""

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
@pytest.mark.parametrize("limits", [{"window": 3}, {"window": 3, "sink": 2}], ids=str)
def test_a_key_is_visible_if_the_mask_and_the_window_show_it(limits: dict[str, int]) -> None:
    model, mask = model_of("mpt").eval(), KINDS["random"]
    seen = (COLUMNS[:, None] - COLUMNS).abs() < 3
    seen |= limits.get("sink", 0) > COLUMNS
    found = []
    for attention in ("fused", "eager"):
        with na.patch(model, na.NTK(2.0), attention=attention, **limits):
            found += [run(model, mask), run(model, mask & seen)]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], **LOGITS)
    if "sink" not in limits:  # those move next to the window
        with na.patch(model, na.NTK(2.0)):
            torch.testing.assert_close(run(model, mask & seen), found[0], **LOGITS)


@torch.no_grad()
@pytest.mark.parametrize("causal", [False, True])
def test_keys_alone_are_padding_in_layers_of_others(causal: bool) -> None:
    """Such layers add a mask of keys to a causal one of their own."""
    model, padding = toy_model(causal), torch.ones(ROWS, TOKENS)
    padding[0, -3:] = 0
    with na.patch(model, family=toy_family(causal)):
        expected = model(IDS, padding)[padding != 0]
        for given in (padding[:, None, None] != 0, added(padding[:, None, None] != 0)):
            found = model(IDS, given)[padding != 0]
            torch.testing.assert_close(found, expected, **LOGITS)


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
def test_a_mask_that_changed_is_read_again() -> None:
    model, mask = model_of("mpt").eval(), KINDS["random"].clone()
    with na.patch(model):
        first = run(model, mask)
        assert torch.equal(run(model, mask), first)
        mask[..., 1:] &= CAUSAL[:, 1:]
        assert torch.equal(run(model, mask), run(model, mask.clone()))
        assert not torch.equal(run(model, mask), first)


PAIRS = TOKENS, TOKENS


@torch.no_grad()
@pytest.mark.parametrize("name", ["mpt", "t5, encoder", "mpnet"])
@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(ROWS, 1, TOKENS, TOKENS - 1) > 0,
        torch.ones(3, 1, *PAIRS) > 0,
        torch.ones(ROWS, 3, *PAIRS) > 0,
        torch.full((ROWS, 1, *PAIRS), -5.0),
        torch.full((ROWS, 1, *PAIRS), float("nan")),
    ],
    ids=["keys", "rows", "heads", "a bias", "NaN"],
)
def test_wrong_masks_are_named(name: str, mask: torch.Tensor) -> None:
    model = model_of(name).eval()
    with na.patch(model), pytest.raises(ValueError, match=r"^attention_mask must [^\n]* got .*$"):
        run(model, mask)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["bloom", "falcon"])
def test_families_whose_stock_model_takes_none_refuse_them(name: str, kind: str) -> None:
    """Their distances count real tokens, which such a mask does not tell."""
    model = model_of(name).eval()
    for attention in ("fused", "eager"):
        with na.patch(model, attention=attention):
            for mask in (KINDS[kind], added(KINDS[kind])):
                with pytest.raises(ValueError, match=r"^attention_mask must have shape \(batch, k"):
                    run(model, mask)


@torch.no_grad()
@pytest.mark.parametrize("name", ["mpt", "t5, encoder", pytest.param("mpnet", marks=newer)])
def test_other_masks_are_told_what_to_pass(name: str) -> None:
    model, sizes = model_of(name).eval(), (1, 1, TOKENS, TOKENS)
    flex = create_block_mask(lambda b, h, i, j: i >= j, *sizes, device="cpu")
    with na.patch(model):
        with pytest.raises(TypeError, match=r"pass create_mask\(attention_mask\.mask_mod, B, H, Q"):
            run(model, cast(Any, flex))
        booleans = create_mask(flex.mask_mod, *sizes, device="cpu")
        assert torch.equal(booleans[0, 0], CAUSAL)
        torch.testing.assert_close(run(model, booleans), run(model, KINDS["causal"]), **LOGITS)
        if name == "mpt":  # transformers asks the others for their axes first
            with pytest.raises(TypeError, match="attention_mask must be None or a tensor, got Blo"):
                run(model, cast(Any, na.BlockMask(booleans)))


@torch.no_grad()
def test_a_mask_is_of_all_keys_of_a_cache() -> None:
    model, cache = model_of("mpt").eval(), DynamicCache()
    with na.patch(model):
        model(IDS, **{CACHE: cache}, use_cache=True)
        mask = torch.ones(ROWS, 1, 1, 1) > 0
        with pytest.raises(ValueError, match=r"^attention_mask must"):
            model(IDS[:, :1], attention_mask=mask, **{CACHE: cache}, use_cache=True)
    with na.patch(model, window=4):
        cache = na.WindowCache(4)
        with pytest.raises(ValueError, match=r"^attention_mask must"):
            model(IDS, attention_mask=KINDS["causal"], **{CACHE: cache}, use_cache=True)


@pytest.mark.needs("torch >= 2.12", "Dynamo of older ones reads no arrays of a bias")
@pytest.mark.parametrize("kind", ["causal", "holes", "values"])
@pytest.mark.parametrize("grad", [False, True])
def test_compiled(kind: str, grad: bool) -> None:
    """Booleans are True for what is seen, and not for what is hidden, in a graph, too."""
    holes = KINDS["causal"].clone()
    holes[..., 8:, 2:7] = False
    mask = {"causal": KINDS["causal"], "holes": holes, "values": added(holes)}[kind]
    model = model_of("mpt").base_model.eval()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with na.patch(model), torch.set_grad_enabled(grad):
        found, expected = (
            x(IDS, attention_mask=mask, use_cache=False)[0] for x in (compiled, model)
        )
        torch.testing.assert_close(found, expected, **LOGITS)
        if kind == "causal":
            plain = model(IDS, use_cache=False)[0]
            torch.testing.assert_close(found, plain, **LOGITS)
    torch.compiler.reset()


@pytest.mark.needs("torch >= 2.12", "Dynamo of older ones reads no arrays of a bias")
@torch.no_grad()
def test_compiled_over_a_cache() -> None:
    holes = KINDS["causal"].clone()
    holes[..., 8:, 2:7] = False
    model = model_of("mpt").base_model.eval()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with na.patch(model):
        whole, cache = model(IDS, attention_mask=holes, use_cache=False)[0], DynamicCache()
        for begin, end in ((0, 8), (8, TOKENS)):
            given = {"attention_mask": holes[..., begin:end, :end], CACHE: cache}
            found = compiled(IDS[:, begin:end], use_cache=True, **given)[0]
            torch.testing.assert_close(found, whole[:, begin:end], **LOGITS)
    torch.compiler.reset()

"""Dynamic methods: each call of a model has the factor for the tokens that it knows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers

import ntk_alibi as na
from model_runs import LOGITS, generate
from ntk_alibi.integrations.arguments import CACHE
from small_models import VOCABULARY, attentions, families, make_model

#: Texts are up to five of these lengths, and the factor is 1 up to half of one.
TRAINED = 8
PIECES = (3, 9, 1, 1, 26)
LENGTH = sum(PIECES)

DYNAMIC = na.DynamicNTK(train_length=TRAINED)
IDS = torch.randint(3, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(3))


def static(tokens: int) -> na.NTK:
    return na.NTK(max(1.0, 2 * tokens / TRAINED))


def logits(model: Any, ids: torch.Tensor, **given: Any) -> torch.Tensor:
    with torch.no_grad():
        output: torch.Tensor = model(ids, **given).logits
    return output


@families
@attentions
@pytest.mark.parametrize("window", [None, 6])
def test_each_piece_has_the_factor_for_all_tokens_up_to_it(
    name: str, attention: Any, window: int | None
) -> None:
    """With a window, too, whose cache forgets tokens: they still count."""
    model = make_model(name, layers=2)
    twin = copy.deepcopy(model)
    caches = [na.WindowCache(window) if window else transformers.DynamicCache() for _ in range(2)]
    options: dict[str, Any] = {"attention": attention, "window": window}
    na.patch(model, DYNAMIC, **options)
    end = 0
    for piece in IDS.split(PIECES, dim=1):
        end += piece.shape[1]
        with na.patch(twin, static(end), **options):
            found, expected = (
                logits(x, piece, **{CACHE: cache}, use_cache=True)
                for x, cache in zip((model, twin), caches, strict=True)
            )
        torch.testing.assert_close(found, expected, **LOGITS)


@families
@attentions
def test_one_pass_is_ntk_for_its_length(name: str, attention: Any) -> None:
    model = make_model(name, layers=2)
    with na.patch(model, DYNAMIC, attention=attention):
        found = [logits(model, IDS[:, :n]) for n in (3, LENGTH)]
    for whole, n in zip(found, (3, LENGTH), strict=True):
        with na.patch(model, static(n), attention=attention):
            torch.testing.assert_close(whole, logits(model, IDS[:, :n]), **LOGITS)


@families
@attentions
def test_padded_rows_are_the_rows_alone(name: str, attention: Any) -> None:
    model, padding = make_model(name, layers=2), LENGTH - 5
    mask = torch.ones_like(IDS)
    mask[1, :padding] = 0
    with na.patch(model, DYNAMIC, attention=attention):
        together = logits(model, IDS, attention_mask=mask)
        torch.testing.assert_close(together[:1], logits(model, IDS[:1]), **LOGITS)
        alone = logits(model, IDS[1:, padding:])
        torch.testing.assert_close(together[1:, padding:], alone, **LOGITS)


@families
def test_generate_gives_no_warning(name: str) -> None:
    """Warnings are errors in these tests; the first token is the one of a full pass."""
    model = make_model(name, layers=2)
    with na.patch(model, DYNAMIC):
        found = generate(model, IDS, None, max_new_tokens=3)
        first = logits(model, IDS)[:, -1].argmax(dim=-1)
    assert torch.equal(found[:, LENGTH], first)

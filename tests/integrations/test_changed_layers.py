"""Layers that change after the patch, and shallow copies of patched models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import ntk_alibi as na
from layer_runs import CLOSE, DRAFT, ELSEWHERE, IDS, MAIN, blocks, forms, patched, run
from ntk_alibi.integrations.arguments import CACHE
from small_models import families, make_model


def number_anew(model: Any) -> None:
    """Number layers by their places, as tools do that add or drop blocks."""
    for number, block in enumerate(blocks(model)):
        for part in block.modules():
            if hasattr(part, "layer_idx"):
                part.layer_idx = number
    model.config.num_hidden_layers = len(blocks(model))


def doubled(layers: nn.ModuleList) -> None:
    layers.insert(1, copy.deepcopy(layers[0]))
    layers.append(copy.deepcopy(layers[2]))


def dropped(layers: nn.ModuleList) -> None:
    del layers[0]


def copied_to_another_depth(layers: nn.ModuleList) -> None:
    layers[2] = copy.deepcopy(layers[0])


@families
@pytest.mark.parametrize("change", [doubled, dropped, copied_to_another_depth])
@forms
def test_blocks_that_change_after_the_patch_have_their_places_in_a_cache(
    name: str, change: Callable[[nn.ModuleList], None], form: Any
) -> None:
    model, stock = make_model(name), make_model(name)
    na.patch(model, attention=form)
    found = []
    for x in (model, stock):
        change(blocks(x))
        number_anew(x)
        cache, logits = transformers.DynamicCache(), []
        with torch.no_grad():
            for begin, end in ((0, 11), (11, 12), (12, 15)):
                given = {CACHE: cache, "use_cache": True}
                logits.append(x(IDS[:, begin:end], **given).logits)
        found.append(torch.cat(logits, dim=1))
    torch.testing.assert_close(*found, **CLOSE)


def shallow_copy(module: Any) -> Any:
    """Return a copy with modules of its own and the same parameters."""
    made = module.__class__.__new__(module.__class__)
    made.__dict__.update(module.__dict__)
    made._parameters = dict(module._parameters)
    made._modules = {
        name: None if part is None else shallow_copy(part) for name, part in module._modules.items()
    }
    return made


@pytest.mark.parametrize("first", [0, 1])
@families
@pytest.mark.parametrize("form", ["fused", "eager"])
def test_a_copy_that_shares_its_layers_is_undone_apart(name: str, form: Any, first: int) -> None:
    model = make_model(name).base_model
    stock = run(model)
    na.patch(model, MAIN, attention=form)
    expected = run(model)
    both = [model, copy.copy(model)]
    for x in both:
        assert torch.equal(run(x), expected)
    na.unpatch(both[first])
    assert torch.equal(run(both[1 - first]), expected)
    with pytest.raises(RuntimeError, match=ELSEWHERE):
        run(both[first])
    na.unpatch(both[1 - first])
    for x in both:
        torch.testing.assert_close(run(x), stock, **CLOSE)


@pytest.mark.parametrize("copied", [shallow_copy, copy.copy])
@families
@forms
def test_a_shallow_copy_runs_its_own_modules(name: str, form: Any, copied: Any) -> None:
    model = make_model(name)
    stock = run(model)
    handle = na.patch(model, MAIN, attention=form)
    expected = run(model)
    twin = copied(model)
    if copied is shallow_copy:
        first = blocks(twin)[0]
        changed = next(x for x in first.modules() if isinstance(x, nn.Linear))
        changed.weight = nn.Parameter(changed.weight.detach() + 0.1)
        assert torch.equal(run(model), expected)
        alone = make_model(name)
        alone.load_state_dict(twin.state_dict())
        torch.testing.assert_close(run(twin), patched(alone, MAIN, form), **CLOSE)
        config = copy.deepcopy(twin.config)
        for part in twin.modules():
            if hasattr(part, "config"):
                part.config = config
        with na.patch(twin, DRAFT, attention="fused"):
            torch.testing.assert_close(run(twin), patched(alone, DRAFT), **CLOSE)
        assert torch.equal(run(model), expected)
        na.patch(twin, MAIN, attention=form)
        handle.undo()
        torch.testing.assert_close(run(twin), patched(alone, MAIN, form), **CLOSE)
        na.unpatch(twin)
        torch.testing.assert_close(run(twin), run(alone), **CLOSE)
    else:
        assert torch.equal(run(twin), expected)
        handle.undo()
    assert torch.equal(run(model), stock)

"""Patched passes on other devices read no number of a tensor on the host.

Tensors of the device "meta" have no values, and raise where one is read, in the place of a GPU,
where the host would wait.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

import ntk_alibi as na
from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.integrations.passes.base import Pass
from ntk_alibi.integrations.passes.given import Given
from ntk_alibi.integrations.passes.rows import problem_of
from ntk_alibi.integrations.settings import settings_of
from small_models import make_model

SCALINGS: dict[str, Any] = {
    "none": None,
    "ntk": na.NTK(4.0),
    "flat": na.FlatHeads(1),
    "knee": na.Knee(4, 2.0),
    "layers": na.NTK(4.0, layers=[0]),
}

FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 6},
    "sinks": {"window": 6, "sink": 2},
    "log n": {"log_n": 4},
}


def run(model: Any, mask: torch.Tensor | None) -> None:
    """Run a prompt and a token after it."""
    ids = torch.ones(2, 9, dtype=torch.long, device="meta")
    with torch.no_grad():
        prompt = model(ids, attention_mask=mask, use_cache=True)
        longer = None if mask is None else torch.cat([mask, mask[:, :1]], dim=1)
        token = model(ids[:, :1], attention_mask=longer, **{CACHE: getattr(prompt, CACHE)})
    assert prompt.logits.shape[:2] == (2, 9)
    assert token.logits.shape[:2] == (2, 1)
    assert token.logits.is_meta


CASES = [
    ("bloom", "none", "window"),
    ("bloom", "flat", "log n"),
    ("bloom", "knee", "sinks"),
    ("bloom", "knee", "log n"),
    ("bloom", "layers", "plain"),
    ("bloom", "layers", "sinks"),
    *(("bloom", "ntk", form) for form in FORMS),
    *((family, "ntk", form) for family in ("mpt", "falcon") for form in FORMS),
]


@pytest.mark.parametrize(("family", "scaling", "form"), CASES)
def test_a_pass_reads_nothing(family: str, scaling: str, form: str) -> None:
    model = make_model(family, layers=2)  # of which "layers" scales one
    na.patch(model, SCALINGS[scaling], **FORMS[form])
    model.to("meta")
    run(model, None)
    run(model, torch.ones(2, 9, dtype=torch.long, device="meta"))


@pytest.mark.parametrize("per", ["query", "sequence"])
def test_lengths_are_known_without_a_mask(per: Any) -> None:
    model: Any = transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=9, hidden_size=32, n_layer=1, n_head=4)
    )
    na.patch(model, na.DynamicNTK(2.0, 4, per=per))
    model.to("meta")
    ids = torch.ones(2, 9, dtype=torch.long, device="meta")
    with torch.no_grad():
        assert model(ids).logits.is_meta


def slopes_on_device(factor: float) -> torch.Tensor:
    """Return the slopes of a new pass of a patched model, on a device."""
    rule, like = ModelSlopes(8), torch.empty(1, device="meta")
    settings = settings_of(na.NTK(factor))
    mask = torch.ones(1, 5, dtype=torch.bool, device="meta")
    problem = problem_of(mask, slice(0, 5), rule, settings.mask, unpadded=True)
    sizes: Any = (1, 5, 5)
    layer = SimpleNamespace(rule=rule)
    given = Given(layer, None, None, None, sizes, mask.device, None, 0, settings, {}, None)
    made = Pass(given, mask, problem)
    (part,) = made.parts(made.bias_of(0), like)
    slopes: torch.Tensor = part.bias.left
    assert slopes.is_meta
    return slopes


def test_slopes_are_copied_to_a_device_once() -> None:
    first = slopes_on_device(4.0)
    assert first is slopes_on_device(4.0)
    assert first is not slopes_on_device(2.0)


def test_slopes_that_were_copied_in_inference_mode_serve_training() -> None:
    """Autograd saves no tensors that were made in that mode."""
    with torch.inference_mode():
        slopes = slopes_on_device(5.5)
    assert not slopes.is_inference()

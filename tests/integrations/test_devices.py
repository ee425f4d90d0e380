"""Patched passes on other devices read no number of a tensor on the host.

Tensors of the device "meta" have no values, and raise where one is read, in the place of a GPU,
where the host would wait.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import ntk_alibi as na
from ntk_alibi.integrations.arguments import CACHE
from small_models import make_model

SCALINGS: dict[str, Any] = {
    "none": None,
    "ntk": na.NTK(4.0),
    "flat": na.FlatHeads(1),
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
    ("bloom", "flat", "sinks"),
    *(("bloom", "ntk", form) for form in FORMS),
    *((family, "ntk", form) for family in ("mpt", "falcon") for form in FORMS),
]


@pytest.mark.parametrize(("family", "scaling", "form"), CASES)
def test_a_pass_reads_nothing(family: str, scaling: str, form: str) -> None:
    model = make_model(family, layers=2)
    na.patch(model, SCALINGS[scaling], **FORMS[form])
    model.to("meta")
    run(model, None)
    run(model, torch.ones(2, 9, dtype=torch.long, device="meta"))


def test_lengths_are_known_without_a_mask() -> None:
    model: Any = transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=9, hidden_size=32, n_layer=1, n_head=4)
    )
    na.patch(model, na.DynamicNTK(2.0, 4))
    model.to("meta")
    ids = torch.ones(2, 9, dtype=torch.long, device="meta")
    with torch.no_grad():
        assert model(ids).logits.is_meta

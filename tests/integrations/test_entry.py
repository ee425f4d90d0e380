"""What a patch writes into a configuration and follows: method, training length, one model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ntk_alibi as na
from model_runs import LOGITS, batch
from small_models import make_model


def test_none_is_original_and_left_out_is_what_was_saved(tmp_path: Path) -> None:
    model = make_model("bloom")
    with na.patch(model, "ntk:4", window=40):
        model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    for _ in range(2):
        handle = na.patch(loaded)
        assert handle.scaling == na.NTK(4.0)
        assert loaded.config.ntk_alibi == {"method": "ntk:4", "window": 40}
        na.patch(loaded, "flat:8", causal_block=16)
        handle = na.patch(loaded, attention="eager")  # nothing of the patch before
        expected = {"method": "ntk:4", "window": 40, "attention": "eager"}
        assert loaded.config.ntk_alibi == expected
        assert na.patch(loaded, None).scaling is None
        assert loaded.config.ntk_alibi == {"method": "original"}
    na.unpatch(loaded)
    assert loaded.config.ntk_alibi == {"method": "ntk:4", "window": 40}
    na.patch(model, "ntk:4", window=40)
    assert na.patch(model, attention="eager").scaling is None
    assert model.config.ntk_alibi == {"method": "original", "attention": "eager"}


@pytest.mark.parametrize("method", ["dynamic-ntk", na.DynamicNTK(), "original:logn=0.5"])
def test_a_saved_method_keeps_its_training_length(method: Any, tmp_path: Path) -> None:
    """Servers read max_seq_len, and people raise it before they save."""
    model, ids = make_model("mpt", max_seq_len=16), batch()
    na.patch(model, method)
    assert model.config.ntk_alibi["train_length"] == 16
    with torch.no_grad():
        expected = model(ids).logits
        model.config.max_seq_len = 1024
        model.save_pretrained(tmp_path)
        again = type(model).from_pretrained(tmp_path).eval()
        na.patch(again)
        torch.testing.assert_close(again(ids).logits, expected, **LOGITS)


@pytest.mark.parametrize("length", [0, -1])
def test_a_saved_training_length_of_no_tokens_is_refused(length: int) -> None:
    model = make_model("bloom")
    model.config.ntk_alibi = {"method": "dynamic-ntk", "train_length": length}
    with pytest.raises(ValueError, match=r"config\.ntk_alibi.* train_length must be between 1"):
        na.patch(model)


@pytest.mark.parametrize(
    ("saved_methods", "lengths", "method"),
    [
        (("ntk:4", "flat:8"), (32, 32), ()),
        ((None, "flat:8"), (32, 32), ()),
        ((None, None), (16, 4096), ("dynamic-ntk",)),
    ],
)
def test_a_module_of_two_models_that_differ_is_refused(
    saved_methods: Any, lengths: Any, method: Any
) -> None:
    """Such as an encoder of queries and one of documents."""
    both = nn.ModuleList(make_model("bloom", seq_length=n) for n in lengths)
    for model, name in zip(both, saved_methods, strict=True):
        if name:
            model.config.ntk_alibi = {"method": name}
    before = [na.patched(model) for model in both]
    with pytest.raises(
        ValueError, match=r"must be the same for all models.* patch each of them by"
    ):
        na.patch(both, *method)
    assert [repr(na.patched(model)) for model in both] == [repr(x) for x in before]
    na.patch(both, "ntk:2")

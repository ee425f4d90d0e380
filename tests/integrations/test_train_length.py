"""Scalings whose training length the patched model gives."""

from __future__ import annotations

import pytest

import ntk_alibi as na
import ntk_alibi.integrations  # registers the name
from small_models import make_model

CONFIGS: dict[str, dict[str, int]] = {
    "bloom": {"seq_length": 24},
    "mpt": {"max_seq_len": 64},
    "falcon": {"max_position_embeddings": 40},
}
lengths = pytest.mark.parametrize(
    ("name", "train_length"),
    [("bloom", 24), ("mpt", 64), ("falcon", 40)],
)


@lengths
def test_an_object_takes_what_its_name_takes(name: str, train_length: int) -> None:
    model = make_model(name, **CONFIGS[name])
    scaling = na.DynamicFlatHeads(2.0)
    for same in ("dynamic-flat:2", scaling, scaling.to_config()):
        with na.patch(model, same) as handle:
            assert handle.scaling == na.DynamicFlatHeads(2.0, train_length)


def test_a_bloom_that_does_not_say_was_trained_at_2048() -> None:
    with na.patch(make_model("bloom"), na.DynamicNTK()) as handle:
        assert handle.scaling == na.DynamicNTK(train_length=2048)


@lengths
def test_a_length_far_from_the_model_s_gives_a_warning(name: str, train_length: int) -> None:
    for near in (train_length // 2, train_length, 2 * train_length):
        with na.patch(make_model(name, **CONFIGS[name]), na.DynamicNTK(1.0, near)):
            pass
    for far in (train_length // 2 - 1, 2 * train_length + 1):
        model, scaling = make_model(name, **CONFIGS[name]), na.DynamicNTK(1.0, far)
        says = f"train_length of .* is {far}, but the model's config has {train_length}"
        with pytest.warns(UserWarning, match=says) as caught, na.patch(model, scaling):
            pass
        assert caught[0].filename == __file__

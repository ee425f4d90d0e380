"""The check of transformers' versions that the patches were not tested with."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers.models.bloom.modeling_bloom import BloomAttention, BloomModel
from transformers.models.falcon import modeling_falcon
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder, MPNetSelfAttention
from transformers.models.mpt.modeling_mpt import MptAttention, MptModel
from transformers.models.t5.modeling_t5 import T5Attention

import ntk_alibi as na
from ntk_alibi.integrations import checks, transformers_versions
from ntk_alibi.integrations.arguments import CACHE
from table_families import FAMILIES, UMT5_NEEDS, model_of

#: Families whose own layers computed something else in older versions.
WRONG = {
    "switch": "Switch has a bias in its first layer alone",
    "umt5": UMT5_NEEDS[1],
}
OF_TRANSFORMERS = [
    pytest.param(
        name,
        marks=pytest.mark.needs("transformers >= 5.18", WRONG[name]) if name in WRONG else (),
    )
    for name, family in FAMILIES.items()
    if family.kind in ("decoder", "both", "buckets")
]
IDS = torch.arange(3, 14)[None]


@pytest.fixture(autouse=True)
def _a_later_version(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "5.99.0")


def pretend(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(transformers_versions, "transformers_version", lambda: version)
    monkeypatch.setattr(checks, "_checked", set())


@pytest.mark.parametrize("family", OF_TRANSFORMERS)
def test_a_version_with_the_same_layers_is_patched_with_one_warning(family: str) -> None:
    model = model_of(family)
    message = (
        r"5.99.0 is not among .* to below 5.25 .* the same up to rounding \(.* to \d\.\de-0[56] "
    )
    with pytest.warns(UserWarning, match=message) as caught:
        na.patch(model, **FAMILIES[family].patch)
    assert len(caught) == 1
    assert na.patched(model)
    na.unpatch(model)
    na.patch(model)  # without another warning, which would be an error


def test_slopes_of_an_mpt_that_transformers_ignores_are_no_difference() -> None:
    model = model_of("mpt")
    model.config.attn_config.alibi_bias_max = 4
    with pytest.warns(UserWarning, match="is the same"):
        na.patch(model)


@pytest.mark.parametrize("version", ["5.25.0.dev0", "5.26.1", "6.0"])
def test_later_and_unreleased_versions_are_checked(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, version)
    with pytest.warns(UserWarning, match=f"transformers {version} is not among") as caught:
        na.patch(model_of("bloom"))
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("version", ["4.29.0", "5.3.0"])
def test_older_versions_are_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, version)
    with pytest.raises(RuntimeError, match=rf"transformers must be >= 5.4 .* got {version}"):
        na.patch(model_of("bloom"))


def test_the_warning_of_an_encoder_does_not_name_a_decoder_that_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(*wrapped(T5Attention, "forward", first(larger, crossing=True)))
    with pytest.warns(UserWarning, match=r"\(encoder: self-attention [^;]*$"):
        na.patch(model_of("t5, encoder"))


def wrapped(owner: Any, name: str, change: Callable[[Any, Any], Any]) -> tuple[Any, str, Any]:
    """Return a method or function whose result is changed."""
    stock = getattr(owner, name)

    @functools.wraps(stock)
    def altered(*args: Any, **kwargs: Any) -> Any:
        return change(stock(*args, **kwargs), kwargs)

    return owner, name, altered


def first(change: Callable[[Any], Any], *, crossing: bool = False) -> Callable[[Any, Any], Any]:
    """Change the first part of a result, or of the result of cross-attention alone."""

    def changed(result: Any, given: Any) -> Any:
        if crossing and given.get("key_value_states") is None:
            return result
        if isinstance(result, torch.Tensor):
            return change(result)
        return (change(result[0]), *result[1:])

    return changed


def larger(x: torch.Tensor) -> torch.Tensor:
    return 1.001 * x


def rotated(heads: Any, _: Any) -> Any:
    """Rotate queries and keys, (batch, heads, tokens, channels), by their positions."""
    query, key, value = heads
    rope = na.RoPE(query.shape[-1])
    at = torch.arange(query.shape[2])[None]
    return rope.rotated(query, at), rope.rotated(key, at), value


ALTERED = {
    "a larger output of BLOOM": ("bloom", BloomAttention, "forward", first(larger)),
    "a larger output of MPT": ("mpt", MptAttention, "forward", first(larger)),
    "a larger output of Falcon": (
        "falcon", modeling_falcon.FalconAttention, "forward", first(larger),
    ),
    "a larger output of an encoder": ("mpnet", MPNetSelfAttention, "forward", first(larger)),
    "a larger output of T5": ("t5", T5Attention, "forward", first(larger)),
    "a larger output of cross-attention": (
        "t5", T5Attention, "forward", first(larger, crossing=True),
    ),
    "a rotation in BLOOM": ("bloom", BloomAttention, "_reshape", rotated),
    "a steeper bias of MPT": ("mpt", MptModel, "build_mpt_alibi_tensor", first(larger)),
    "a steeper bias of Falcon": (
        "falcon", modeling_falcon, "build_alibi_tensor", first(larger),
    ),
    "a steeper bias of an encoder": (
        "mpnet", MPNetEncoder, "compute_position_bias", first(larger),
    ),
    "a steeper bias of T5": ("t5", T5Attention, "compute_bias", first(larger)),
    "NaN": ("bloom", BloomAttention, "forward", first(lambda x: x / 0 * 0)),
}  # fmt: skip


@pytest.mark.parametrize("case", ALTERED)
@pytest.mark.filterwarnings("ignore:transformers 5.99.0:UserWarning")  # the encoder of T5 is right
def test_a_layer_that_computes_something_else_is_refused(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, owner, name, change = ALTERED[case]
    model = model_of(family)
    kept = {key: value for key, value in vars(model).items() if not key.startswith("_")}
    monkeypatch.setattr(*wrapped(owner, name, change))
    message = r"5.99.0 is not among .* does not compute with a patch what it .* stays as it is"
    with pytest.raises(RuntimeError, match=message):
        na.patch(model)
    assert na.patched(model) == []
    assert vars(model).items() >= kept.items()


#: Where alone a later BLOOM may compute something else, asked of a layer, its input and its pass.
PLACES: dict[str, Callable[[Any, torch.Tensor, dict[str, Any]], bool]] = {
    "of layer 2 for padded rows": lambda layer, *_: layer.layer_idx == 1,
    "for one row without a mask": lambda _, states, __: len(states) == 1,
    "for a prompt of one row without a mask, with a cache": lambda _, states, given: (
        len(states) == 1 and given.get(CACHE) is not None
    ),
    "for one token of padded rows, with a cache": lambda _, states, given: (
        states.shape[1] == 1 and given.get("attention_mask") is not None
    ),
    "for one token of one row without a mask, with a cache": lambda _, states, given: (
        states.shape[1] == 1 and given.get("attention_mask") is None
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_layer_that_computes_something_else_in_one_place_is_refused(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, stock_of_model, given = BloomAttention.forward, BloomModel.forward, {}

    @functools.wraps(stock_of_model)
    def forward_of_model(model: Any, *args: Any, **kwargs: Any) -> Any:
        given.clear()
        given.update(kwargs)
        return stock_of_model(model, *args, **kwargs)

    @functools.wraps(stock)
    def forward(layer: Any, states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        output, weights = stock(layer, states, *args, **kwargs)
        return output * (1.001 if PLACES[place](layer, states, given) else 1), weights

    monkeypatch.setattr(BloomModel, "forward", forward_of_model)
    monkeypatch.setattr(BloomAttention, "forward", forward)
    with pytest.raises(RuntimeError, match=f"{place} differs by 1.0e-03 of the greatest"):
        na.patch(model_of("bloom"))


def test_an_argument_that_matters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = BloomAttention.forward

    @functools.wraps(stock)
    def forward(*args: Any, temperature: float = 1.1, **kwargs: Any) -> Any:
        output, weights = stock(*args, **kwargs)
        return output * temperature, weights

    monkeypatch.setattr(BloomAttention, "forward", forward)
    with pytest.raises(RuntimeError, match="does not compute with a patch"):
        na.patch(model_of("bloom"))


def test_an_argument_that_does_not_matter_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = BloomAttention.forward

    @functools.wraps(stock)
    def forward(*args: Any, new_option: Any = None, **kwargs: Any) -> Any:
        del new_option
        return stock(*args, **kwargs)

    monkeypatch.setattr(BloomAttention, "forward", forward)
    model = model_of("bloom")
    stock_model = copy.deepcopy(model)
    with pytest.warns(UserWarning, match="5.99.0"):
        na.patch(model)
    with torch.no_grad():
        torch.testing.assert_close(model(IDS).logits, stock_model(IDS).logits)


def test_a_layer_that_raises_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Any, hidden_states: Any, residual: Any, alibi: Any, **_: Any) -> Any:
        raise NotImplementedError("moved")

    monkeypatch.setattr(BloomAttention, "forward", forward)
    with pytest.raises(RuntimeError, match=r"transformers 5.99.0"):
        na.patch(model_of("bloom"))

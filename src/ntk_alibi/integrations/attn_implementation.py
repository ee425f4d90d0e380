"""`attn_implementation="ntk_alibi"`: models that are patched from the start.

transformers looks up attention functions and masks in two registries by name. BLOOM, MPT and Falcon
do not ask the first, T5 asks both, and a name in only one of them makes models silently
non-causal, or blind to padding. The name is therefore registered in both. Models of known families
that are made with it patch themselves at the end of __init__; any other model raises.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Any, NoReturn, cast

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function
from transformers.models.falcon.modeling_falcon import FALCON_ATTENTION_CLASSES, FalconAttention

from ntk_alibi.integrations import saving
from ntk_alibi.integrations.families import listed, transformers_families
from ntk_alibi.integrations.family import Family
from ntk_alibi.integrations.patching import follow_config
from ntk_alibi.integrations.settings import CONFIG_NAMES, PATCHED, own_config
from ntk_alibi.integrations.tokens import MISUSE, NAME, Tokens
from ntk_alibi.methods import find_misspelled_settings

#: The families that are patched from the start.
_FAMILIES = transformers_families()


class Configured:
    """A setting of a configuration, None by default; objects become what JSON can hold."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, config: Any, owner: Any = None) -> Any:
        return None if config is None else vars(config).get(self._name)

    def __set__(self, config: Any, value: Any) -> None:
        plain = value is None or isinstance(value, str | bool | int | float | list | Mapping)
        if not plain and (
            isinstance(value, type) or not callable(getattr(value, "to_config", None))
        ):
            raise TypeError(
                f"{self._name} must be what JSON can hold, or have to_config as NTK(factor=4.0) "
                f"has, got {value!r}: na.patch takes other objects"
            )
        vars(config)[self._name] = value if plain else value.to_config()

    def __delete__(self, config: Any) -> None:
        vars(config).pop(self._name, None)


def register() -> None:
    """Register the name with transformers, once."""
    if NAME in FALCON_ATTENTION_CLASSES:
        return
    FALCON_ATTENTION_CLASSES[NAME] = FalconAttention
    AttentionMaskInterface.register(NAME, tokens_of_pass)
    AttentionInterface.register(NAME, _refuse)
    _patch_when_made()
    _refuse_others()
    for family in _FAMILIES:
        _let_have_settings(family.config_class())
        _let_ask_for_weights(family.config_class())
    saving.register()


def _patch_when_made() -> None:
    """Let models patch themselves at the end of __init__.

    The classes of the models are not asked for: they may not be imported yet.
    """
    stock: Any = PreTrainedModel.post_init

    @functools.wraps(stock)
    def post_init(self: Any) -> None:
        _take_own_config(self)
        stock(self)
        for family in _FAMILIES:
            if family.matches(self):
                _follow(family, self)

    PreTrainedModel.post_init = post_init  # type: ignore[method-assign]


def _take_own_config(model: Any) -> None:
    """Give a new model that was made of a patched one's configuration the one of a stock model."""
    if own_config(model.config) is not model.config:
        for part in model.modules():
            if "config" in vars(part) and PATCHED not in vars(part):
                part.config = own_config(part.config)


def _follow(family: Family, model: Any) -> None:
    """Let a new model of a family follow its configuration, or warn that it does not."""
    config = model.config
    if config._attn_implementation == NAME:
        follow_config(family, model)
        correct = (*CONFIG_NAMES, "alibi_bias_max")
        if others := find_misspelled_settings(config, CONFIG_NAMES, correct):
            warnings.warn(
                f"the model's config has {', '.join(others)}, which no model follows: settings "
                f"of attn_implementation={NAME!r} are {', '.join(CONFIG_NAMES)}",
                stacklevel=4,
            )
    elif given := [name for name in CONFIG_NAMES if getattr(config, name, None)]:
        warnings.warn(
            f"the model's config has {', '.join(given)}, which only a model made with "
            f"attn_implementation={NAME!r} follows: this one has {family.own_bias}",
            stacklevel=4,
        )


def _let_have_settings(config_class: Any) -> None:
    """Give a class of configurations the settings, which from_pretrained then takes as keywords.

    A configuration without settings has none in its own attributes, and saves none.
    """
    for name in CONFIG_NAMES:
        setattr(config_class, name, Configured(name))


def _refuse_others() -> None:
    """Refuse the name for models that neither are of a family nor have parts that may be.

    For models of a family, errors for an unknown attn_implementation name ours.
    """
    stock: Any = getattr(PreTrainedModel, "get_correct_attn_implementation", None)
    if stock is None:  # older versions have none
        return
    configs = tuple(family.config_class() for family in _FAMILIES)

    @functools.wraps(stock)
    def get_correct_attn_implementation(
        self: Any, requested: Any, *args: Any, **kwargs: Any
    ) -> Any:
        of_family = isinstance(self.config, configs)
        if requested == NAME and not of_family and not getattr(self.config, "sub_configs", None):
            raise ValueError(
                "attn_implementation='ntk_alibi' must be given to a model of a known family "
                f"({listed(_FAMILIES)}), got {type(self).__name__}, whose attention it is not for: "
                "load the model without the name, and call na.patch"
            )
        try:
            return stock(self, requested, *args, **kwargs)
        except ValueError as error:
            if not of_family:
                raise
            raise ValueError(f'{error} ntk_alibi has `attn_implementation="{NAME}"`.') from None

    cast(Any, PreTrainedModel).get_correct_attn_implementation = get_correct_attn_implementation


def _let_ask_for_weights(config_class: Any) -> None:
    """Let configurations have output_attentions, with which our models attend by "eager".

    transformers checks in two places that no name but "eager" goes with it.
    """
    stock: property = config_class.output_attentions

    def set_output_attentions(config: Any, value: Any) -> None:
        if config._attn_implementation == NAME:
            config._output_attentions = value
        else:
            cast(Any, stock.fset)(config, value)

    def unless_ours(check: Any) -> Any:
        @functools.wraps(check)
        def checked(config: Any) -> None:
            if config._attn_implementation != NAME:
                check(config)

        return checked if check.__name__ == "validate_output_attentions" else check

    config_class.output_attentions = property(stock.fget, set_output_attentions)
    validators = getattr(config_class, "__class_validators__", [])  # older versions have none
    validators[:] = map(unless_ours, validators)


def tokens_of_pass(
    *_: Any, mask_function: Any = None, attention_mask: torch.Tensor | None = None, **__: Any
) -> Tokens:
    """Return the tokens of a pass; transformers asks this function for masks of patched models."""
    if _tells_segments_apart(mask_function):
        raise ValueError(
            "position_ids must rise by one from token to token where the forward method of a "
            "patched model is called directly, got several segments in a row: call model(...)"
        )
    return Tokens(attention_mask)


def _tells_segments_apart(mask_function: Any) -> bool:
    """Return whether a mask of transformers tells the segments of a row apart.

    It is then made of a function that does, as Falcon's mask is of two in older versions.
    """
    if mask_function in (causal_mask_function, bidirectional_mask_function):
        return False
    if "packed_sequence" in getattr(mask_function, "__qualname__", ""):
        return True
    cells = getattr(mask_function, "__closure__", None) or ()
    parts = [cell.cell_contents for cell in cells]
    functions = [x for part in parts for x in (part if isinstance(part, tuple) else (part,))]
    return any(_tells_segments_apart(x) for x in functions if callable(x))


def _refuse(*_: Any, **__: Any) -> NoReturn:
    """Raise for a model whose attention is not patched."""
    raise RuntimeError(MISUSE)

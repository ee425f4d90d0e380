"""`attn_implementation="ntk_alibi"`: models that are patched from the start.

In BLOOM, MPT and Falcon transformers does not look up attention functions in its registries, and a
name in only one of the two registries makes these models silently non-causal. The name is therefore
registered in both. Models of these families that are made with it patch themselves at the end of
__init__; any other model raises.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable
from typing import Any, NoReturn, cast

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.models.falcon.modeling_falcon import FALCON_ATTENTION_CLASSES, FalconAttention

from ntk_alibi import _checks
from ntk_alibi.integrations import saving, texts
from ntk_alibi.integrations.passed_through import Padding
from ntk_alibi.integrations.patching import follow_config
from ntk_alibi.integrations.settings import CONFIGURED, Configured
from ntk_alibi.integrations.transformers_family import TransformersFamily

NAME = "ntk_alibi"

#: Settings of a configuration.
_NAMES = tuple(f"alibi_{name}" for name in CONFIGURED)


def register(families: Iterable[TransformersFamily]) -> None:
    """Register the name with transformers, once."""
    if NAME in FALCON_ATTENTION_CLASSES:
        return
    FALCON_ATTENTION_CLASSES[NAME] = FalconAttention
    AttentionMaskInterface.register(NAME, _hand_padding)
    AttentionInterface.register(NAME, _refuse)
    families = tuple(families)
    _refuse_others(families)
    for family in families:
        _let_have_settings(family)
        _patch_when_made(family)
        _read_texts_when_made(family)
        _let_ask_for_weights(family)
        _name_ours(family)
    saving.register()


def _patch_when_made(family: TransformersFamily) -> None:
    model_class: Any = family.model
    make = model_class.__init__

    @functools.wraps(make)
    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        make(self, config, *args, **kwargs)
        if config._attn_implementation == NAME:
            follow_config(family, self)
            if others := _checks.almost_settings(config, _NAMES, (*_NAMES, "alibi_bias_max")):
                warnings.warn(
                    f"the model's config has {', '.join(others)}, which no model follows: settings "
                    f"of attn_implementation={NAME!r} are {', '.join(_NAMES)}",
                    stacklevel=2,
                )
        elif given := [name for name in _NAMES if getattr(config, name, None)]:
            warnings.warn(
                f"the model's config has {', '.join(given)}, which only a model made with "
                f"attn_implementation={NAME!r} follows: this one has plain ALiBi",
                stacklevel=2,
            )

    model_class.__init__ = __init__


def _read_texts_when_made(family: TransformersFamily) -> None:
    """Let models around one that patched itself read what their callers say about texts."""
    base: Any = family.model.__base__
    stock = base.post_init

    @functools.wraps(stock)
    def post_init(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        if self.config._attn_implementation == NAME and not isinstance(self, family.model):
            for target in family.find(self):
                texts.keep_hooks(self, target)

    base.post_init = post_init


def _let_have_settings(family: TransformersFamily) -> None:
    """Let from_pretrained take settings as keywords: those that a configuration has by its class.

    A configuration without settings has none in its own attributes, and saves none.
    """
    for name in _NAMES:
        setattr(cast(Any, family.model).config_class, name, Configured(name))


def _name_ours(family: TransformersFamily) -> None:
    """Let the error for an unknown attn_implementation name ours, which it leaves out."""
    base: Any = family.model.__base__
    stock = getattr(base, "get_correct_attn_implementation", None)
    if stock is None:  # older versions have none
        return

    @functools.wraps(stock)
    def get_correct_attn_implementation(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return stock(self, *args, **kwargs)
        except ValueError as error:
            raise ValueError(f'{error} ntk_alibi has `attn_implementation="{NAME}"`.') from None

    base.get_correct_attn_implementation = get_correct_attn_implementation


def _refuse_others(families: Iterable[TransformersFamily]) -> None:
    """Refuse the name for models that neither are of a family nor have parts that may be."""
    stock: Any = getattr(PreTrainedModel, "get_correct_attn_implementation", None)
    if stock is None:  # older versions have none
        return
    ours = tuple(cast(Any, family.model).config_class for family in families)

    @functools.wraps(stock)
    def get_correct_attn_implementation(
        self: Any, requested: Any, *args: Any, **kwargs: Any
    ) -> Any:
        known = isinstance(self.config, ours) or getattr(self.config, "sub_configs", None)
        if requested == NAME and not known:
            raise ValueError(
                "attn_implementation='ntk_alibi' must be given to a BLOOM, MPT or Falcon, got "
                f"{type(self).__name__}, whose attention it is not for"
            )
        return stock(self, requested, *args, **kwargs)

    cast(Any, PreTrainedModel).get_correct_attn_implementation = get_correct_attn_implementation


def _let_ask_for_weights(family: TransformersFamily) -> None:
    """Let configurations have output_attentions, with which our models attend by "eager".

    transformers checks in two places that no name but "eager" goes with it.
    """
    config_class: Any = cast(Any, family.model).config_class
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


def _hand_padding(*_: Any, attention_mask: torch.Tensor | None = None, **__: Any) -> Padding:
    """Return the padding in place of a mask of queries and keys, which generate() asks for."""
    return Padding(attention_mask)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    """Raise for a model whose attention is not patched."""
    raise RuntimeError(Padding.misuse)

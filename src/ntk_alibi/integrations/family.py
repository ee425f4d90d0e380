"""A model family, and the checks that a patch fits a model of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Protocol, TypeAlias

import torch
from packaging.version import Version
from torch import nn

from ntk_alibi import _checks
from ntk_alibi.biases.dense import check_key_only
from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.integrations import own_bias
from ntk_alibi.integrations.settings import (
    COMPATS,
    Settings,
    check_layers,
    check_own_masks,
    stack_of,
)
from ntk_alibi.masks import EVERYTHING

#: Versions of transformers whose modeling code the patches were read against;
#: tests/integrations/test_versions.py lists the ones tested. The upper bound is exclusive.
TRANSFORMERS_VERSIONS = (Version("5.4"), Version("6"))

#: Owner, attribute and replacement.
Replacement: TypeAlias = tuple[nn.Module, str, Any]


class LayerAttention(Protocol):
    """The attention of one layer in one call of its model."""

    @property
    def stock(self) -> Any:
        """The attention itself if transformers' own forward computes it, to the bit, or None."""

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: tuple[Any, int | None],
        scale: float,
        dropout: float = 0.0,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return attention output (batch, heads, queries, head_dim), and weights or None.

        Args:
            query: (batch, heads, queries, head_dim).
            key: (batch, 1 or heads, queries, head_dim).
            value: (batch, 1 or heads, queries, head_dim).
            cache: a cache, or None, and the number of the layer in it.
            scale: the factor of the products.
            dropout: the probability of dropping a weight.
        """


#: Returns the attention of a layer from the layer, the mask that it got, the number of heads that
#: it computes, its input and its product with the outputs of its heads.
AttentionOf: TypeAlias = Callable[[nn.Module, Any, int, torch.Tensor, Any], LayerAttention]


@dataclass(frozen=True)
class Family:
    """A model family: the classes of its ALiBi models, and the replacements in one.

    Attributes:
        name: the family's name in messages.
        model: the class whose forward begins a pass.
        attention: the class of its attention layers.
        expected: the parameters that methods of transformers must have.
        rule: returns the rule of a model's slopes.
        layers: returns the attention layers of a model.
        forward: the forward of an attention layer, with an `AttentionOf` before its arguments.
        replacements: returns the other replacements in a model: owner, attribute, and a function of
            the owner or a plain value. The functions read their settings from `current` at every
            call.
        traceable: returns those for attention="traceable".
        tensor_parallel: returns the tensor parallel plan of a configuration.
        check: raises if a model cannot be patched with these settings.
        rounds: whether transformers rounds the bias in a way that compat="transformers" repeats.
        masks_hidden: whether boolean masks of its layers are True for hidden keys.
        linear: classes whose forward is x @ weight.T + bias.
    """

    name: str
    model: type[nn.Module]
    attention: type[nn.Module]
    expected: dict[tuple[type[nn.Module], str], tuple[str, ...]]
    rule: Callable[[Any], ModelSlopes]
    layers: Callable[[Any], list[nn.Module]]
    forward: Callable[..., tuple[torch.Tensor, torch.Tensor | None]]
    replacements: Callable[[Any], list[Replacement]]
    traceable: Callable[[Any], list[Replacement]]
    tensor_parallel: Callable[[Any], dict[str, str]]
    check: Callable[[Any, Settings], None]
    rounds: bool = False
    masks_hidden: bool = False
    linear: tuple[type[nn.Module], ...] = (nn.Linear,)

    def choices(self) -> Callable[[Settings], None]:
        """Return the function that checks the choice of rounding; it can be pickled."""
        return partial(check_choices, self.name, self.rounds)

    def find(self, module: nn.Module) -> list[nn.Module]:
        """Return the models of this family inside a module."""
        return [part for part in module.modules() if isinstance(part, self.model)]


def check(family: Family, target: nn.Module, settings: Settings) -> None:
    """Check that the target and the modeling code are those that the patch was written for."""
    family.choices()(settings)
    for (owner, method), names in family.expected.items():
        function = getattr(owner, method)
        if missing := set(names) - set(inspect.signature(function).parameters):
            raise RuntimeError(
                f"transformers {transformers_version()} is not what the {family.name} patch "
                f"expects: {function.__qualname__} has no {', '.join(sorted(missing))}"
            )
    layers = family.layers(target)
    for part, known in (target, family.model), *((layer, family.attention) for layer in layers):
        if type(part).forward is not known.forward:
            raise ValueError(
                f"model must have the forward method of transformers' {known.__name__}, got a "
                f"{type(part).__name__} with another forward"
            )
    check_layers(settings.scaling, len(layers))
    if settings.traceable:
        check_own_masks(None in stack_of(target))
    if settings.bias is not None:
        own_bias.check(settings.bias, family.rule(target).heads, len(layers))
    if settings.log_n is not None:
        config: Any = target.config
        settings.log_n.check_heads(config.num_attention_heads)
    family.check(target, settings)


def check_choices(name: str, rounds: bool, settings: Settings) -> None:
    """Check that a family rounds as `compat` says, and with a bias that depends on keys alone."""
    _checks.choice(f"compat for {name}", settings.compat, COMPATS if rounds else COMPATS[:1])
    if settings.compat == "transformers":
        check_key_only(settings.scaling)
        _checks.choice(
            "attention with compat='transformers'", settings.attention, ("fused", "eager")
        )
        if settings.mask != EVERYTHING:
            raise ValueError(
                "compat must be 'exact' with window, sink or causal_block, which transformers does "
                f"not have, got {settings.compat!r}"
            )


def transformers_version() -> str:
    """Return the installed version; transformers may replace its module while it is imported."""
    version: str = import_module("transformers").__version__
    return version


def check_version() -> None:
    """Raise for versions of transformers that the patches were not written for."""
    installed, (low, high) = transformers_version(), TRANSFORMERS_VERSIONS
    if not low <= Version(installed) < high:
        raise RuntimeError(
            f"transformers must be >= {low} and < {high} for ntk_alibi's patches, got {installed}: "
            "in other versions a patch may silently do nothing"
        )

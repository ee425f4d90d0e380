"""Families of transformers' own decoders, whose code a patch knows by version and parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn

from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.integrations import layer_attention, shared_loss, texts, traceable
from ntk_alibi.integrations.arguments import positional_names
from ntk_alibi.integrations.begin_pass import INPUTS, begin_pass
from ntk_alibi.integrations.family import Family, Replacement
from ntk_alibi.integrations.layer_attention import AttentionOf
from ntk_alibi.integrations.settings import (
    TRACEABLE,
    Settings,
    check_own_masks,
    stack_of,
)
from ntk_alibi.integrations.transformers_versions import (
    check_forward,
    check_parameters,
    check_version,
)
from ntk_alibi.methods import stated_train_length, train_length_of


@dataclass(frozen=True, kw_only=True)
class TransformersFamily(Family):
    """A family of transformers' own classes, with caches, masks and generate().

    Their `forward` gets an `AttentionOf` in place of an `Attend`: a pass begins before the model's
    own forward, and reaches the layers in place of a mask.

    Attributes:
        model: the class whose forward begins a pass.
        attention: the class of its attention layers.
        parameters: parameters that the forward of an attention layer must have.
        expected: those that other methods of transformers must have.
        traceable: returns the replacements in a model with attention="traceable".
        tensor_parallel: returns the tensor parallel plan of a configuration.
        masks_hidden: whether boolean masks of its layers are True for hidden keys.
    """

    model: type[nn.Module]
    attention: type[nn.Module]
    parameters: tuple[str, ...]
    slopes: Callable[[Any], ModelSlopes]
    traceable: Callable[[Any], list[Replacement]]
    tensor_parallel: Callable[[Any], dict[str, str]]
    expected: Mapping[tuple[type[nn.Module], str], tuple[str, ...]] = field(default_factory=dict)
    masks_hidden: bool = False
    matches: Callable[[nn.Module], bool] = field(init=False)
    train_length: Callable[[Any], int | None] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "matches", partial(_is_of, self.model))
        object.__setattr__(self, "train_length", _stated_train_length)

    @property
    def config_class(self) -> Any:
        """The class of configurations that a model of this family follows."""
        kind: Any = self.model
        return kind.config_class

    def filled_length(self, model: nn.Module) -> int:
        """Return the training length in a model's config, or BLOOM's if it has none."""
        return train_length_of(model.config)

    def check_fit(self, model: nn.Module, settings: Settings) -> None:
        """Check that the model and the modeling code are those that the patch was written for."""
        check_version()
        for (owner, method), names in {
            (self.attention, "forward"): self.parameters,
            (self.model, "forward"): INPUTS,
            **self.expected,
        }.items():
            check_parameters(self.name, getattr(owner, method), names)
        layers = self.layers(model)
        for part, known in (model, self.model), *((layer, self.attention) for layer in layers):
            check_forward(part, known, known.__name__)
        if settings.traceable:
            check_own_masks(None in stack_of(model))
        self.check_parts(model, settings)

    def check_numbers(self, model: nn.Module, patch: Callable[[], None]) -> None:
        """Compare nothing: what transformers' code computes is known by its version."""

    def adopt(self, module: nn.Module, model: nn.Module) -> None:
        """Let models around a patched one compute losses and read texts as it does."""
        shared_loss.keep_models(module, model)
        texts.keep_hooks(module, model)

    def follow(self, model: nn.Module, settings: Settings) -> None:
        """Let models around a patched one compute the loss of this rank's part of a text."""
        shared_loss.choose(model, settings.ranks)

    def abandon(self, model: nn.Module) -> None:
        """Undo `adopt` and `follow`."""
        shared_loss.give_back(model)
        texts.give_back(model)

    def begin(self, model: nn.Module, settings: Settings) -> list[Any]:
        """Let a hook begin the passes of a model."""
        hook: Callable[..., Any] = partial(begin_pass, self, positional_names(model))
        if settings.traceable:
            hook = partial(traceable.begin, positional_names(model))
            setattr(model, TRACEABLE, True)
            for layer in self.layers(model):
                traceable.add_bias(layer, self.slopes(model), settings)
        return [model.register_forward_pre_hook(hook, with_kwargs=True)]

    def end(self, model: nn.Module) -> None:
        """Undo `begin`, except for the hook."""
        if hasattr(model, TRACEABLE):
            delattr(model, TRACEABLE)
            for layer in self.layers(model):
                traceable.remove_bias(layer)

    def all_replacements(self, model: nn.Module) -> list[Replacement]:
        """Return the replacements in a patched model, its layers' forward included."""
        attention_of: AttentionOf = layer_attention.of_layer
        replacements = self.replacements(model)
        if hasattr(model, TRACEABLE):
            attention_of = partial(traceable.of_layer, masks_hidden=self.masks_hidden)
            replacements = self.traceable(model)
        forward = partial(self.forward, attention_of)
        return [*replacements, *((layer, "forward", forward) for layer in self.layers(model))]


def _is_of(model: type[nn.Module], part: nn.Module) -> bool:
    return isinstance(part, model)


def _stated_train_length(model: Any) -> int | None:
    return stated_train_length(model.config)

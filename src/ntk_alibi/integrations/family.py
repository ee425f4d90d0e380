"""A model family: what a patch needs to know about the models that it serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias, cast

import torch
from torch import nn

from ntk_alibi import _checks
from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.integrations import biases, checks
from ntk_alibi.integrations.biases import Table
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.integrations.transformers_versions import (
    check_forward,
    check_parameters,
    check_version,
    class_named,
)
from ntk_alibi.masks import EVERYTHING
from ntk_alibi.methods import find_train_length, train_length_or_default

#: Owner, attribute and replacement: a callable, which gets the owner as its first argument, or a
#: plain value.
Replacement: TypeAlias = tuple[nn.Module, str, Any]


#: All families, by name, in the order in which they were registered.
REGISTERED: dict[str, Family] = {}


def _nothing(*_: Any) -> Any:
    """Return None."""


def _none(_: Any) -> list[Any]:
    """Return an empty list."""
    return []


@dataclass(frozen=True)
class Code:
    """The code of transformers for which a family's patch was written.

    Attributes:
        model: the name of the class that holds the layers.
        attention: the name of its attention layers' class.
        config: the name of its configuration's class.
        parameters: parameters that the forward of an attention layer must have.
        methods: those that other methods of the model must have, by the methods' names.
    """

    model: str
    attention: str
    config: str
    parameters: tuple[str, ...]
    methods: Mapping[str, tuple[str, ...]]

    def check(self, family: str, model: nn.Module, layers: Sequence[nn.Module]) -> None:
        """Check that a model and its layers are of this code."""
        stock = class_named(self.model, model)
        check_forward(model, stock, self.model)
        for name, parameters in self.methods.items():
            check_parameters(family, getattr(stock, name), parameters)
        stock = class_named(self.attention, layers[0]) if layers else None
        for layer in layers:
            check_forward(layer, stock, self.attention)
        if stock is not None:
            check_parameters(family, stock.forward, self.parameters)


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model family: how to find its models, their attention layers and their slopes.

    The first five fields are needed. A guide writes a family from an empty file
    (docs/models.md).

    Attributes:
        name: the family's name in messages.
        matches: matches(module) returns whether a module is a model of the family, the one that
            holds the layers. Ask for class names and parts, not for a loaded class, where every
            revision of a model brings a class of its own.
        layers: layers(model) returns the attention layers, in their order.
        forward: the forward of an attention layer, forward(attend, layer, ...) with the arguments
            of the layer's own, whose result it returns. It computes queries, keys and values as
            the layer does, and calls `attend(query, key, value, mask=..., scale=..., dropout=...,
            weights=...)` for the output (batch, heads, queries, head_dim) and the weights; see
            `ntk_alibi.integrations.Attend`.
        slopes: slopes(model) returns the number of heads, for the slopes of ALiBi at distances
            between columns, or a `ModelSlopes`.
        causal: whether queries see no keys ahead of them, or a function of the model that returns
            it; False for encoders, whose bias is symmetric.
        replacements: replacements(model) returns what else is replaced in a patched model: tuples
            (owner, attribute, replacement). A function gets the owner first; other replacements are
            plain values.
        release: release(model) frees what a patched model does not need, such as a tensor of all
            pairs, and returns what `rebuild` needs to know.
        rebuild: rebuild(model, what release returned) brings it back when the last patch goes.
        check: check(model, settings) raises for a model that the patch does not fit. The settings
            have the arguments of `patch`: scaling, attention, mask, log_n.
        example: example(model) returns the arguments of the model's forward, by name, on which one
            layer of the patched model is compared with its own: by default random input_ids and an
            attention_mask with padding.
        while_compared: while_compared(model) returns replacements for the time in which the model's
            own layer runs on the example.
        compared_within: the greatest difference to the model's own layer, as a share of its
            greatest output, with which it counts as the same.
        train_length: train_length(model) returns the training length, or None where a scaling must
            have it.
        code: the code of transformers that the patch was written for, which passes `Tokens` to
            the layers; None for models whose layers are compared by their outputs.
        tables: tables(model) returns the `Table` of each layer, for models with a learned bias in
            place of slopes, or None.
        crossing: crossing(model) returns layers over the states of another model, in the
            order of the layers before them.
        decoder: whether it is a decoder of transformers with slopes, for attention="traceable".
        makes_masks: makes_masks(model) returns whether transformers' code computes with the mask,
            so that its layers get a mask in place of `Tokens`.
        masks_pairs: whether its models take masks of four dimensions, where columns count.
        model_forward: `model_forward(model, **arguments)` is called in place of the model's own
            forward.
        masks_hidden: whether boolean masks of transformers' layers are True for hidden keys.

    Example:
        >>> from ntk_alibi.integrations import Family
        >>> def matches(module):
        ...     return type(module).__name__ == "TinyEncoder" and hasattr(module, "blocks")
        >>> def forward(attend, layer, hidden, mask=None):
        ...     query, key, value = layer.project(hidden)
        ...     output, _ = attend(query, key, value, mask=mask)
        ...     return layer.output(output.transpose(1, 2).flatten(2))
        >>> family = Family(
        ...     name="TinyEncoder",
        ...     matches=matches,
        ...     layers=lambda model: [block.attention for block in model.blocks],
        ...     forward=forward,
        ...     slopes=lambda model: model.heads,
        ...     causal=False,
        ... )
    """

    name: str
    matches: Callable[[nn.Module], bool]
    layers: Callable[[Any], Sequence[nn.Module]]
    forward: Callable[..., Any]
    slopes: Callable[[Any], int | ModelSlopes]
    causal: bool | Callable[[Any], bool] = True
    replacements: Callable[[Any], list[Replacement]] = _none
    release: Callable[[Any], Any] = _nothing
    rebuild: Callable[[Any, Any], None] = _nothing
    check: Callable[[Any, Settings], None] = _nothing
    example: Callable[[Any], dict[str, Any]] = checks.example
    while_compared: Callable[[Any], list[Replacement]] = _none
    compared_within: float = checks.TOLERANCE
    train_length: Callable[[Any], int | None] = _nothing
    code: Code | None = None
    tables: Callable[[Any], Sequence[Table]] | None = None
    crossing: Callable[[Any], list[nn.Module]] = _none
    decoder: bool = False
    makes_masks: Callable[[Any], bool] = _nothing
    masks_pairs: bool = False
    model_forward: Callable[..., Any] | None = None
    masks_hidden: bool = False

    @property
    def own_bias(self) -> str:
        """The bias of models without scaling, in messages."""
        return "plain ALiBi" if self.tables is None else "learned buckets"

    def __deepcopy__(self, _: Any) -> Family:
        """Return itself: copies of a patched model are of the same family."""
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Let pickles name a family that both processes know."""
        if REGISTERED.get(self.name) is self:
            return _family_named, (self.name,)
        return super().__reduce_ex__(protocol)

    def find(self, module: nn.Module) -> list[nn.Module]:
        """Return the models of this family inside a module."""
        return [part for part in module.modules() if self.matches(part)]

    def rule(self, model: nn.Module) -> ModelSlopes:
        """Return the rule of a model's slopes."""
        slopes = self.slopes(model)
        if hasattr(slopes, "left_and_right"):
            return cast(ModelSlopes, slopes)
        heads = _checks.integer(f"slopes of the family {self.name}", slopes, minimum=1)
        return ModelSlopes(heads, counts_holes=True)

    def is_causal(self, model: nn.Module) -> bool:
        """Return whether queries of a model see no keys ahead of them."""
        return self.causal(model) if callable(self.causal) else self.causal

    def config_class(self) -> Any:
        """Return the class of configurations that a model of this family follows, or None."""
        if self.code is None:
            return None
        return getattr(import_module("transformers"), self.code.config)

    def stated_length(self, model: Any) -> int | None:
        """Return the training length in a model's configuration, or None."""
        return find_train_length(model.config) if self.decoder else self.train_length(model)

    def filled_length(self, model: Any) -> int | None:
        """Return the training length of scalings without one, or None: BLOOM's config has none."""
        if self.decoder:
            return train_length_or_default(model.config)
        return self.train_length(model)

    def check_settings(self, settings: Settings) -> None:
        """Refuse settings that no model of this family can have."""
        name = self.name
        if self.tables is not None and settings.scaling is not None:
            raise ValueError(
                f"method must be 'original' or a bias for {name}, which has learned buckets and no "
                f"slopes, got {_checks.briefly(settings.scaling)}"
            )
        if self.decoder:
            return
        where = f"for {name}"
        _checks.choice(f"attention {where}", settings.attention, ("fused", "eager"))
        if self.tables is not None:
            _checks.check_equal("sink", settings.mask.sink, 0, where)
            _checks.check_equal("causal_block", settings.mask.causal_block, None, where)
            _checks.check_equal("log_n", settings.log_n, None, where)
        elif self.causal is False and settings.mask != EVERYTHING:
            raise ValueError(
                f"window, sink and causal_block must not be given for {name}, an encoder, got "
                f"{settings!r}"
            )

    def check_fit(self, model: nn.Module, settings: Settings) -> None:
        """Check that a model can have these settings, and that its code is the known one."""
        if self.code is not None:
            check_version()
        self.check_settings(settings)
        layers, scaling = self.layers(model), settings.scaling
        if self.code is not None:
            self.code.check(self.name, model, [*layers, *self.crossing(model)])
        elif getattr(scaling, "train_length", 1) is None:
            raise ValueError(
                f"train_length must be given for {scaling!r} of a {self.name}, whose config does "
                "not say at what length the model was trained, got None"
            )
        if not layers:
            raise ValueError(f"layers of the family {self.name} must be at least one, got none")
        heads, encoder = self.rule(model).heads, not self.is_causal(model)
        if settings.bias is not None:
            biases.check(settings.bias, heads, len(layers), encoder=encoder)
        if settings.log_n is not None:
            settings.log_n.check_heads(heads)
        self.check(model, settings)


def check_states(hidden_states: Any) -> None:
    """Refuse the input of a layer if it is no plain tensor."""
    if type(hidden_states) is not torch.Tensor:
        _checks.check_plain("hidden_states", hidden_states)


def dropped(part: Any) -> float:
    """Return the probability by which a dropout module drops now, by its own mode.

    Raises:
        ValueError: it is a module with another forward.
    """
    if type(part).forward is nn.Identity.forward:
        return 0.0
    if type(part).forward is not nn.Dropout.forward:
        raise ValueError(
            "dropout of weights must be torch's Dropout or Identity in a patched layer, got "
            f"{_checks.briefly(part)}, whose weights a fused layer does not form"
        )
    return float(part.p) if part.training else 0.0


def of_transformers(
    *,
    model: str,
    attention: str,
    config: str,
    parameters: tuple[str, ...],
    methods: Mapping[str, tuple[str, ...]] | None = None,
    **fields: Any,
) -> Family:
    """Return a family of transformers' classes: the fields of its `Code`, and its other fields."""
    code = Code(model, attention, config, parameters, methods or {})
    return Family(matches=partial(class_named, model), code=code, **fields)


def _family_named(name: str) -> Family:
    return REGISTERED[name]


def check_family(value: Any) -> Family:
    """Return the argument `family` if it is one."""
    if not isinstance(value, Family):
        raise TypeError(
            f"family must be an ntk_alibi.integrations.Family, got {type(value).__name__}"
        )
    return value


def register(family: Family) -> None:
    """Let `patch` find the models of a family.

    Args:
        family: the family; it is asked before those that were registered earlier.

    Raises:
        TypeError: family is no `Family`.
        ValueError: its name is taken.

    Example:
        >>> from ntk_alibi.integrations import Family, register
        >>> register(
        ...     Family(
        ...         name="Tiny",
        ...         matches=lambda module: type(module).__name__ == "TinyDecoder",
        ...         layers=lambda model: list(model.layers),
        ...         forward=lambda attend, layer, hidden: layer.mix(hidden, attend),
        ...         slopes=lambda model: model.heads,
        ...     )
        ... )
    """
    name = check_family(family).name
    if name.lower() in map(str.lower, REGISTERED):
        raise ValueError(f"name of a family must be one that is not taken, got {name!r}")
    REGISTERED[name] = family

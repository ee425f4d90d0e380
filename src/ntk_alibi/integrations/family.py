"""A model family: what a patch must know of the models that it fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

from torch import nn

from ntk_alibi import _checks
from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.integrations import attend, numeric_check, own_bias
from ntk_alibi.integrations.settings import Settings, check_layers
from ntk_alibi.integrations.transformers_versions import is_pretrained
from ntk_alibi.masks import EVERYTHING
from ntk_alibi.scaling import scaling_per

#: Owner, attribute and replacement: a function, which gets the owner as its first argument, or a
#: plain value.
Replacement: TypeAlias = tuple[nn.Module, str, Any]


def _nothing(*_: Any) -> Any:
    """Return None."""


def _none(_: Any) -> list[Replacement]:
    """Return no replacements."""
    return []


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
        causal: whether queries see no keys ahead of them; False for encoders, whose bias is
            symmetric.
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
        train_length: train_length(model) returns the training length, or None where a scaling must
            have it.

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
    causal: bool = True
    replacements: Callable[[Any], list[Replacement]] = _none
    release: Callable[[Any], Any] = _nothing
    rebuild: Callable[[Any, Any], None] = _nothing
    check: Callable[[Any, Settings], None] = _nothing
    example: Callable[[Any], dict[str, Any]] = numeric_check.example
    while_compared: Callable[[Any], list[Replacement]] = _none
    train_length: Callable[[Any], int | None] = _nothing

    @property
    def own_bias(self) -> str:
        """The bias of models without scaling, in messages."""
        return "plain ALiBi"

    def __deepcopy__(self, _: Any) -> Family:
        """Return itself: copies of a patched model are of the same family."""
        return self

    def find(self, module: nn.Module) -> list[nn.Module]:
        """Return the models of this family inside a module."""
        return [part for part in module.modules() if self.matches(part)]

    def rule(self, model: nn.Module) -> ModelSlopes:
        """Return the rule of a model's slopes."""
        slopes = self.slopes(model)
        if hasattr(slopes, "of_sides"):
            return cast(ModelSlopes, slopes)
        heads = _checks.integer(f"slopes of the family {self.name}", slopes, minimum=1)
        return ModelSlopes(heads, counts_holes=True)

    def filled_length(self, model: nn.Module) -> int | None:
        """Return the training length of scalings without one, or None if it is unknown."""
        return self.train_length(model)

    def check_settings(self, settings: Settings) -> None:
        """Refuse what no model of the family takes; in each pass of one that follows its config."""

    def check_fit(self, model: nn.Module, settings: Settings) -> None:
        """Check that a model can have these settings."""
        _checks.choice(f"attention for {self.name}", settings.attention, ("fused", "eager"))
        group = settings.ranks and settings.ranks.group
        _checks.only("group", group, None, f"for {self.name}")
        if not self.causal:
            self._check_encoder(settings)
        scaling, layers = settings.scaling, self.layers(model)
        if getattr(scaling, "train_length", 1) is None:
            raise ValueError(
                f"train_length must be given for {scaling!r} of a {self.name}, whose config does "
                "not say at what length the model was trained, got None"
            )
        if not layers:
            raise ValueError(f"layers of the family {self.name} must be at least one, got none")
        self.check_parts(model, settings, encoder=not self.causal)

    def check_parts(self, model: nn.Module, settings: Settings, *, encoder: bool = False) -> None:
        """Check that the model has the layers and heads of the settings, and call `check`."""
        layers, heads = len(self.layers(model)), self.rule(model).heads
        check_layers(settings.scaling, layers)
        if settings.bias is not None:
            own_bias.check(settings.bias, heads, layers, encoder=encoder)
        if settings.log_n is not None:
            settings.log_n.check_heads(heads)
        self.check(model, settings)

    def _check_encoder(self, settings: Settings) -> None:
        """Refuse what has a meaning in causal attention only."""
        if settings.mask != EVERYTHING:
            raise ValueError(
                f"window, sink and causal_block must not be given for {self.name}, an encoder, got "
                f"{settings!r}"
            )
        if scaling_per(settings.scaling) == "query":
            raise ValueError(
                f"scaling must have per='sequence' for {self.name}, an encoder, whose queries see "
                f"the whole text, got {settings.scaling!r}"
            )

    def check_numbers(self, model: nn.Module, patch: Callable[[], None]) -> None:
        """Patch a model without scaling, and compare one layer with its own forward.

        Args:
            model: the model, without patches.
            patch: patches it without scaling.
        """
        numeric_check.compare(self, model, patch)

    @property
    def config_class(self) -> Any:
        """The class of configurations that a model of this family follows, or None."""
        return None

    def adopt(self, module: nn.Module, model: nn.Module) -> None:
        """Let modules around a model know that it is patched."""
        if any(is_pretrained(part) for part in module.modules()):
            from ntk_alibi.integrations import saving

            saving.register()

    def follow(self, model: nn.Module, settings: Settings) -> None:
        """Let modules around a model follow the settings that are in force now."""

    def abandon(self, model: nn.Module) -> None:
        """Undo `adopt` and `follow`."""

    def begin(self, model: nn.Module, settings: Settings) -> list[Any]:
        """Prepare a model for its first patch, and return the handles of its hooks."""
        del settings
        attend.start(model)
        return [
            model.register_forward_pre_hook(attend.forget),
            model.register_forward_hook(attend.forget, always_call=True),
        ]

    def end(self, model: nn.Module) -> None:
        """Undo `begin`, except for the hooks."""
        attend.stop(model)

    def all_replacements(self, model: nn.Module) -> list[Replacement]:
        """Return the replacements in a patched model, its layers' forward included."""
        rule = self.rule(model)
        return [
            *self.replacements(model),
            *(
                (
                    layer,
                    "forward",
                    partial(self.forward, attend.Attend(model, i, rule, self.causal)),
                )
                for i, layer in enumerate(self.layers(model))
            ),
        ]


def check_family(value: Any) -> Family:
    """Return the argument `family` if it is one."""
    if not isinstance(value, Family):
        raise TypeError(
            f"family must be an ntk_alibi.integrations.Family, got {type(value).__name__}"
        )
    return value

"""Families of transformers' classes whose bias is learned: a number for each bucket of distances.

A pass begins as that of the other classes of transformers, and its layers attend as theirs do.
The bias is not one of slopes: it is made of the model's own weights, for each pass anew, since
optimizers change them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from ntk_alibi import _checks
from ntk_alibi.biases.base import BiasObject
from ntk_alibi.biases.kernel_bias import NO_BIAS, KernelBias
from ntk_alibi.integrations.arguments import check_padding, given_mask, positional_names
from ntk_alibi.integrations.attend import BIDIRECTIONAL
from ntk_alibi.integrations.begin_pass import begin_pass
from ntk_alibi.integrations.cache_argument import CACHE, cache_of
from ntk_alibi.integrations.family import Family, Replacement
from ntk_alibi.integrations.forward_pass import ForwardPass, untraced
from ntk_alibi.integrations.layer_attention import PassAttention, checked_pass
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.integrations.transformers_versions import (
    check_forward,
    check_parameters,
    check_version,
)
from ntk_alibi.masks import Problem


@dataclass(frozen=True, eq=False)
class NoBias(BiasObject):
    """The bias of cross-attention: none."""

    num_heads: int

    def __post_init__(self) -> None:
        self.define(num_heads=self.num_heads, sides="symmetric")

    def kernel_bias(self, problem: Problem, like: Any = None) -> KernelBias:
        """Return no bias."""
        del problem, like
        return NO_BIAS


class StackPass(ForwardPass):
    """A pass of a model that turns its padding into numbers to add, as the encoder of Switch does.

    The operations by which it does so leave the pass as it is.
    """

    def __getitem__(self, _: Any) -> StackPass:
        return self

    def __rsub__(self, _: Any) -> StackPass:
        return self

    def __mul__(self, _: Any) -> StackPass:
        return self


def _no_layers(_: Any) -> list[nn.Module]:
    return []


@dataclass(frozen=True, kw_only=True)
class BucketFamily(Family):
    """A family whose layers add a number of a table, by the bucket of the distance.

    Their `forward` gets the number of the layer in place of an `Attend`.

    Attributes:
        model: the name of the class in transformers whose forward begins a pass.
        attention: that of its attention layers.
        config: that of its configuration.
        parameters: parameters of the forward of an attention layer.
        tables: tables(model) returns a function for each layer that returns its bias.
        is_causal: is_causal(model) returns whether its tokens see no others ahead of them.
        crossing: crossing(model) returns layers over the states of another model, with the numbers
            of the layers before them.
        slopes: slopes(model) returns the number of heads; there are no slopes.
    """

    model: str
    attention: str
    config: str
    parameters: tuple[str, ...]
    tables: Callable[[Any], Mapping[int, Callable[[], BiasObject]]]
    is_causal: Callable[[Any], bool]
    crossing: Callable[[Any], list[nn.Module]] = _no_layers
    matches: Callable[[nn.Module], bool] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "matches", partial(_is_of, self.model))

    @property
    def own_bias(self) -> str:
        """The bias of models without scaling, in messages."""
        return "learned buckets"

    @property
    def config_class(self) -> Any:
        """The class of the models' configurations."""
        import transformers

        return getattr(transformers, self.config)

    def check_settings(self, settings: Settings) -> None:
        """Refuse what has no meaning without slopes, or is not for such a family."""
        name = self.name
        if settings.scaling is not None:
            raise ValueError(
                f"scaling must be None or a bias for {name}, which has learned numbers and no "
                f"slopes, got {settings.scaling!r}"
            )
        _checks.choice(f"attention for {name}", settings.attention, ("fused", "eager"))
        where = f"for {name}"
        _checks.only("sink", settings.mask.sink, 0, where)
        _checks.only("causal_block", settings.mask.causal_block, None, where)
        _checks.only("log_n", settings.log_n, None, where)
        _checks.only("group", settings.ranks and settings.ranks.group, None, where)

    def check_fit(self, model: nn.Module, settings: Settings) -> None:
        """Check that the model and the modeling code are those that the patch was written for."""
        check_version()
        self.check_settings(settings)
        layers = [*self.layers(model), *self.crossing(model)]
        for part, name in (model, self.model), *((layer, self.attention) for layer in layers):
            check_forward(part, known_class(part, name), name)
        check_parameters(self.name, type(layers[0]).forward, self.parameters)
        self.check_parts(model, settings, encoder=not self.is_causal(model))

    def check_numbers(self, model: nn.Module, patch: Callable[[], None]) -> None:
        """Compare nothing: what transformers' code computes is known by its version."""

    def begin(self, model: nn.Module, settings: Settings) -> list[Any]:
        """Let a hook begin the passes of a model."""
        del settings
        hook = partial(begin_stack, self, positional_names(model))
        return [model.register_forward_pre_hook(hook, with_kwargs=True)]

    def end(self, model: nn.Module) -> None:
        """Undo `begin`, except for the hook."""

    def all_replacements(self, model: nn.Module) -> list[Replacement]:
        """Return the replacements in a patched model, its layers' forward included."""
        return [
            *self.replacements(model),
            *(
                (layer, "forward", partial(self.forward, number))
                for layers in (self.layers(model), self.crossing(model))
                for number, layer in enumerate(layers)
            ),
        ]


def _is_of(name: str, part: nn.Module) -> bool:
    return known_class(part, name) is not None


def known_class(part: nn.Module, name: str) -> Any:
    """Return the class of transformers with a name that a module is of, or None."""
    for base in type(part).__mro__:
        if base.__name__ == name and base.__module__.startswith("transformers.models."):
            return base
    return None


def attention_of(layer: nn.Module, number: int, passed: Any) -> PassAttention:
    """Return the attention of a layer from its number and what it got in place of a mask."""
    return PassAttention(checked_pass(layer, passed), number)


@untraced
def begin_stack(
    family: BucketFamily,
    names: tuple[str, ...],
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[()], dict[str, Any]]:
    """Begin the pass of a model, and that of its layers over the states of another one."""
    _, kwargs = begin_pass(family, names, model, args, kwargs)
    passed = kwargs.get("attention_mask")
    if not isinstance(passed, ForwardPass):
        return (), kwargs  # the model itself raises the error
    problem = passed.problem
    problem = problem._replace(mask=problem.mask._replace(causal=family.is_causal(model)))
    own = {**family.tables(model), **passed.own}
    kwargs["attention_mask"] = _like(passed, passed.mask, problem, own)
    states = kwargs.get("encoder_hidden_states")
    if states is not None:
        kwargs["encoder_attention_mask"] = _crossing_pass(passed, states, kwargs)
    return (), kwargs


def _crossing_pass(passed: ForwardPass, states: torch.Tensor, kwargs: Any) -> StackPass:
    """Return the pass of layers over the states of another model."""
    cache = cache_of(kwargs)
    if cache is not None and not hasattr(cache, "cross_attention_cache"):
        raise ValueError(
            f"{CACHE} must be an EncoderDecoderCache with encoder_hidden_states, got "
            f"{type(cache).__name__}"
        )
    batch, heads, queries, _ = passed.problem.shape
    keys = states.shape[1]
    given = given_mask(kwargs.get("encoder_attention_mask"))
    real = torch.ones((batch, keys), dtype=torch.bool, device=states.device)
    if given is not None:
        _checks.plain("encoder_attention_mask", given)
        if given.shape != real.shape:
            raise ValueError(
                f"encoder_attention_mask must have shape (batch, keys) = {tuple(real.shape)}, got "
                f"{tuple(given.shape)}"
            )
        check_padding(given)
        real = (given != 0).to(states.device)
    padding = None if given is None or (real.is_cpu and bool(real.all())) else real
    shape = batch, heads, queries, keys
    problem = Problem.checked(shape, BIDIRECTIONAL, padding, None, None, like=states)
    return _like(passed, real, problem, {None: NoBias(heads)})


def _like(passed: ForwardPass, mask: torch.Tensor, problem: Problem, own: Any) -> StackPass:
    return StackPass(mask, problem, passed.rule, passed.settings, own=own)

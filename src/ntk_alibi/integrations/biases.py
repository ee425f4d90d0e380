"""Biases in the place of slopes: those that a patch brings, a model's learned table, and none.

A patch brings a `BiasObject`, a module that returns one, or either for some layers. Modules become
the submodule `ntk_alibi_bias` of the model, so that optimizers, state_dict and `to` see their
parameters. Layers ask the submodule, not the patch, for its bias: a wrapper such as PEFT's may have
taken its place.

Learned tables are read through the module that holds them: frameworks load and gather parameters in
hooks of modules, so a table is read by calling its module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ntk_alibi import _checks
from ntk_alibi._torch_state import has_values, is_followed
from ntk_alibi.biases.base import BiasObject, check_defined
from ntk_alibi.biases.kernel_bias import NO_BIAS, KernelBias
from ntk_alibi.masks import Problem

#: The submodule of a patched model.
NAME = "ntk_alibi_bias"


def bias_of_argument(value: Any) -> Any:
    """Return the bias that the argument `method` of `patch` is, or None.

    Returns:
        A bias object, a module, or a dict of them by layers.

    Raises:
        ValueError: it may be meant as a bias, but is none.
    """
    if isinstance(value, Mapping) and value and all(isinstance(key, int) for key in value):
        biases = {layer: bias_of_argument(bias) for layer, bias in value.items()}
        if wrong := [layer for layer, bias in biases.items() if bias is None or layer < 0]:
            raise ValueError(
                "method must be a dict of layers to biases, from 0 on, got "
                f"{_checks.briefly(value[wrong[0]])} for layer {wrong[0]}"
            )
        return biases
    if isinstance(value, nn.Module):
        return value
    if callable(getattr(value, "kernel_bias", None)) and not isinstance(value, type):
        return value
    if callable(value) and not callable(getattr(value, "scale_exponents", None)):
        raise ValueError(
            "method must be a scaling, a bias object such as KerpleLog(r1, r2), or a torch module "
            f"that returns one, got {_checks.briefly(value)}"
        )
    return None


def check(given: Any, heads: int, layers: int, *, encoder: bool) -> None:
    """Check that a bias is one of positions alone, and of a model's heads, layers and sides."""
    for layer, own in by_layer(given).items():
        if layer is not None and layer >= layers:
            raise ValueError(
                f"method must be a dict of layers below {layers}, the number of the model's "
                f"layers, got {layer}"
            )
        bias = own
        if isinstance(own, nn.Module):
            try:
                with torch.no_grad():
                    bias = returned(own)
            except (TypeError, AttributeError) as error:
                raise ValueError(
                    "method must be a module that returns a bias without hidden states, got "
                    f"{type(own).__name__}, which raises {error!r}"
                ) from error
        if not callable(getattr(bias, "kernel_bias", None)):
            raise ValueError(
                f"method must be a module that returns a BiasObject, got {type(own).__name__}, "
                f"which returns {type(bias).__name__}"
            )
        check_defined(bias)
        if bias.num_heads != heads:
            raise ValueError(
                f"method must be a bias of the model's {heads} heads, got {_checks.briefly(bias)}"
            )
        if encoder and getattr(bias, "sides", None) == "causal":
            raise ValueError(
                "method must be a bias of both sides for an encoder, such as one with "
                f"sides='symmetric', got {_checks.briefly(bias)}"
            )
        of_queries = getattr(bias, "query_length", None) is not None
        if of_queries or getattr(bias, "per_token", False):
            raise ValueError(
                "method must be a bias of positions alone, got one with values of single tokens, "
                f"{_checks.briefly(bias)}"
            )


def by_layer(bias: Any) -> dict[Any, Any]:
    """Return the biases by layers; by None if there is one for all layers."""
    return dict(bias) if isinstance(bias, Mapping) else {None: bias}


def modules_of(bias: Any) -> dict[Any, nn.Module]:
    """Return the modules among biases by layers."""
    return {k: own for k, own in by_layer(bias).items() if isinstance(own, nn.Module)}


def returned(make: Any) -> Any:
    """Return what a module, or a function without arguments, returns.

    Modules may take hidden states, and get None for them.
    """
    takes = isinstance(make, nn.Module) and inspect.signature(make.forward).parameters
    return make(None) if takes else make()


def hold_modules(target: nn.Module, bias: Any) -> None:
    """Make the modules of a bias a submodule of a model, on its device; None takes it away."""
    if NAME in dict(target.named_children()):
        delattr(target, NAME)
    modules = modules_of(bias)
    if not modules:
        return
    device = next(target.parameters()).device
    for module in modules.values():
        if any(x.device != device for x in module.parameters()):
            module.to(device)
    if None in modules:
        target.add_module(NAME, modules[None])
    else:
        every = {str(layer): module for layer, module in modules.items()}
        target.add_module(NAME, nn.ModuleDict(every))


def biases_of(target: nn.Module, bias: Any) -> dict[Any, Any]:
    """Return the biases by layers, with the modules that the model has now."""
    own = by_layer(bias)
    for layer in modules_of(bias):
        held: Any = getattr(target, NAME)
        own[layer] = held if layer is None else held[str(layer)]
    return own


@dataclass(eq=False)
class Table:
    """A table of a model, which several layers may share.

    Attributes:
        owner: the module whose relative_attention_bias, an embedding, it is.
        buckets: the number of its rows that count.
        bias: bias(rows) returns the bias of these rows, (buckets, heads), an array or a tensor.
        kept: constant rows and their bias, whose table over distance the steps of a generation
            share, or None.
    """

    owner: nn.Module
    buckets: int
    bias: Callable[[Any], BiasObject]
    kept: tuple[torch.Tensor, BiasObject] | None = field(init=False, default=None)

    def rows(self, device: torch.device) -> torch.Tensor:
        """Return the table as it is now, (buckets, heads)."""
        embedding: Any = self.owner.relative_attention_bias
        rows: torch.Tensor = embedding(torch.arange(self.buckets, device=device))
        return rows

    def rows_gradient(self, problem: Problem, of_distances: NDArray[Any]) -> torch.Tensor:
        """Return the gradient of the rows from the one of the bias, (heads, distances)."""
        heads = len(of_distances)
        indices = np.repeat(np.arange(float(self.buckets))[:, None], heads, axis=1)
        bucket = self.bias(indices).kernel_bias(problem).table.astype(np.int64)
        gradient = np.zeros((self.buckets, heads))
        np.add.at(gradient, (bucket, np.arange(heads)[:, None]), of_distances)
        return torch.from_numpy(gradient)

    def bias_now(self, device: torch.device, rows: torch.Tensor | None = None) -> BiasObject:
        """Return the bias of the table as it is now, or of rows that were read before."""
        rows = self.rows(device) if rows is None else rows
        if rows.requires_grad or not rows.is_cpu or is_followed(rows) or not has_values(rows):
            return self.bias(rows)
        kept = self.kept
        if kept is None or not torch.equal(rows, kept[0]):
            self.kept = kept = rows, self.bias(rows.double().numpy())
        return kept[1]


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

"""Biases that a patch brings: a `BiasObject`, a module that returns one, or either for some layers.

Modules become the submodule `ntk_alibi_bias` of the model, so that optimizers, state_dict and
`to` see their parameters. Layers ask the submodule, not the patch, for its bias: a wrapper such as
PEFT's may have taken its place.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ntk_alibi import _checks
from ntk_alibi.biases.base import check_defined

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

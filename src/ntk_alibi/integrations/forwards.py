"""The forward methods that a patch gives the class of a model and of its attention layers.

The model's says which patch runs, and hands `Tokens` to transformers in place of masks. A layer's
finds them, and attends by their patch. Neither holds a patch: layers that several models share,
copies and files of parts carry nothing of a model.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from ntk_alibi._torch_state import in_backward_pass
from ntk_alibi.integrations import graph_operator
from ntk_alibi.integrations.arguments import check_arguments, may_repeat_cache, without_booleans
from ntk_alibi.integrations.classes import PATCH, PLACE, direct, stock_class
from ntk_alibi.integrations.tokens import ANOTHER_PATCH, Tokens

#: The tokens of the patched model that runs in this thread, or `STOCK`.
_running = threading.local()

#: What runs in place of tokens where layers attend by their own forward.
STOCK = Tokens()


@direct
def model_forward(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Replace the forward of a patched model."""
    patch = getattr(model, PATCH, None)
    if patch is None:  # undone, where others have made a class of the patched one since
        return stock_class(model).forward(model, *args, **kwargs)
    if patch.model is not model:
        patch = patch.adopt(model)
    own = partial(patch.family.model_forward or stock_class(model).forward, model)
    # Dynamo of torch 2.9 takes strict=False for True.
    names = zip(patch.positional[: len(args)], args)  # noqa: B905
    arguments = {**dict(names), **kwargs} if args else kwargs
    if len(arguments) < len(args) + len(kwargs):  # too many, or one twice
        return own(*args, **kwargs)  # which raises
    tokens, before = _handed_over(patch, arguments), running_tokens()
    if _exports_strictly():
        return own(**arguments)
    _running.tokens = tokens
    try:
        return own(**arguments)
    finally:
        _running.tokens = before


@direct
def layer_forward(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Replace the forward of an attention layer: a patched model attends, others call its own."""
    tokens: Any = getattr(_running, "tokens", None)  # no call more in each layer of a token
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tokens) and value.patch is not None:
            tokens = value  # of a checkpointed layer, which runs again amid another model's pass
    attend, place = None, getattr(layer, PLACE, None)
    if place is not None and tokens is not None and tokens is not STOCK:
        attend = place.attend()
        if attend is None or attend.patch is not tokens.patch or attend.layer is not layer:
            attend = tokens.patch.attend_of(layer)
    if attend is None and place is not None and tokens is not STOCK:
        attend = _attend_without_tokens(layer, (*args, *kwargs.values()))
    if attend is None:
        return stock_class(layer).forward(layer, *args, **kwargs)
    return attend.family.forward(attend, layer, *args, **kwargs)


@contextmanager
def as_stock() -> Iterator[None]:
    """Let layers attend by their own forward, which a model without patch may share with others."""
    before = running_tokens()
    _running.tokens = STOCK
    try:
        yield
    finally:
        _running.tokens = before


def running_tokens() -> Any:
    """Return the tokens of the patched model that runs in this thread, or None."""
    return getattr(_running, "tokens", None)


def _attend_without_tokens(layer: nn.Module, values: Iterable[Any]) -> Any:
    """Return the `Attend` of a layer that no patched model calls, or None for its own forward.

    A checkpointed layer of remote code, which got a mask, runs again in the backward pass alone. A
    strict export has no state beside arguments.
    """
    found = [patch.own(layer) for patch in graph_operator.in_force()]
    owners = [attend for attend in found if attend is not None]
    if len(owners) == 1 and _exports_strictly():
        return owners[0]
    if owners and in_backward_pass():
        knowing = [x for x in owners if x.patch.memory.knows(values)]
        owners = knowing if len(knowing) == 1 else owners
        if not owners[0].patch.has_run:  # it has come since the forward pass
            raise ValueError(ANOTHER_PATCH)
        if len(owners) == 1:
            return owners[0]
    if owners:
        patch = owners[0].patch
        raise RuntimeError(
            f"layer must be called by its patched {type(patch.model).__name__} "
            f"({patch!r}), got a call of {type(layer).__name__} from elsewhere: undo that "
            "patch, patch the model that calls it, too, or give it a copy of the layer"
        )
    return None


def _exports_strictly() -> bool:
    """Return whether Dynamo traces for torch.export, which warns of changes outside of a graph."""
    return torch.compiler.is_exporting() and torch.compiler.is_dynamo_compiling()


def _handed_over(patch: Any, arguments: dict[str, Any]) -> Tokens:
    """Check the arguments of a model, put tokens in place of its masks, and return the tokens."""
    family, mask = patch.family, arguments.get("attention_mask")
    tokens = mask if isinstance(mask, Tokens) else Tokens(patch, mask)
    if not patch.hands_over and not torch.compiler.is_exporting():
        patch.has_run = True
    if family.code is None:
        return tokens
    if arguments.get("use_cache") is False:
        tokens.may_repeat = may_repeat_cache(arguments)
    if mask is not tokens:
        if patch.traceable or family.tables is not None:
            _check_layers(patch)
        check_arguments(patch, arguments)
    if patch.traceable:
        arguments["attention_mask"] = without_booleans(mask, patch)
    wanted = arguments.get("output_attentions")
    tokens.weights = bool(patch.model.config.output_attentions if wanted is None else wanted)
    if not patch.hands_over:
        return tokens
    arguments["attention_mask"] = tokens
    if arguments.get("encoder_hidden_states") is not None:
        of_encoder = Tokens(patch, arguments.get("encoder_attention_mask"))
        of_encoder.weights, arguments["encoder_attention_mask"] = tokens.weights, of_encoder
    return tokens


def _check_layers(patch: Any) -> None:
    """Refuse layers that took the place of others, and would attend without a bias.

    Layers get tokens in all other models, which those without patch refuse.
    """
    layers = patch.family.layers(patch.model)
    if patch.traceable and not all(hasattr(layer, PLACE) for layer in layers):
        raise ValueError(
            f"model must have the layers that it had at the patch, got a {patch.family.name} with "
            "other ones: patch again after replacing layers"
        )
    if patch.family.tables is None:
        return
    first = patch.own(layers[0])
    owner = layers[0] if first is None else first.table.owner
    if owner is not layers[0] and patch.own(owner) is not None:
        raise ValueError(
            f"model must have the layers that it had at the patch, got a {patch.family.name} "
            "without the first one, whose table of biases the others share: undo the patch"
        )

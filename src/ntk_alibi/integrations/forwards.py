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

from ntk_alibi._torch_state import has_values, in_backward_pass, is_tracing
from ntk_alibi.integrations import graph_operator, run_again
from ntk_alibi.integrations.arguments import cache_of, inputs_of, may_repeat_cache
from ntk_alibi.integrations.classes import PATCH, PLACE, direct, stock_class
from ntk_alibi.integrations.passes.mask_values import check_inputs, check_shape, shown
from ntk_alibi.integrations.tokens import Tokens

#: Arguments that describe several texts in a row: collators without padding, continuous batching.
PACKED = (
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
    "seq_idx",
    "read_index",
    "write_index",
    "block_table",
)

INSTEAD = (
    "a patched model reads one text a row: na.attention(segment_ids=...) in a model of your own, "
    "or vLLM, reads packed rows"
)

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
        run_again.check_has_run(owners[0].patch)
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
        _check(patch, arguments)
    if patch.traceable:
        arguments["attention_mask"] = _without_booleans(mask, patch)
    wanted = arguments.get("output_attentions")
    tokens.weights = bool(patch.model.config.output_attentions if wanted is None else wanted)
    if not patch.hands_over:
        return tokens
    arguments["attention_mask"] = tokens
    if arguments.get("encoder_hidden_states") is not None:
        of_encoder = Tokens(patch, arguments.get("encoder_attention_mask"))
        of_encoder.weights, arguments["encoder_attention_mask"] = tokens.weights, of_encoder
    return tokens


def _check(patch: Any, arguments: dict[str, Any]) -> None:
    """Refuse arguments that a patched model of transformers does not read as they are meant."""
    if patch.traceable or patch.family.tables is not None:
        _check_layers(patch)
    check_inputs(arguments)
    mask: Any = arguments.get("attention_mask")
    cache, inputs = cache_of(arguments), inputs_of(arguments)
    for name in ("cache", "past_key_values"):
        value = arguments.get(name)
        if value is not None and not hasattr(value, "get_seq_length"):
            got = type(value).__name__
            raise ValueError(f"{name} must have get_seq_length, got {got}: {INSTEAD}")
    for name in PACKED:
        if arguments.get(name) is not None:
            raise ValueError(
                f"{name} must be None, got a {type(arguments[name]).__name__}: {INSTEAD}"
            )
    if getattr(mask, "ndim", 2) == 4 and not patch.family.masks_pairs:
        advice = "na.attention(mask=...) in a model of your own takes masks of pairs"
        if getattr(cache, "is_compileable", False):
            advice = "take another cache than a static one, for which generate() makes such masks"
        raise ValueError(
            "attention_mask must have shape (batch, keys) for a patched "
            f"{patch.family.name}, as transformers' own takes it, got {tuple(mask.shape)}: {advice}"
        )
    if inputs is None:
        return
    if arguments.get("position_ids") is not None and patch.causal:
        _check_positions(arguments["position_ids"], mask, inputs.shape[1])
    if patch.traceable and mask is not None and not is_tracing():
        (rows, tokens), past, capacity = inputs.shape[:2], 0, 0
        if cache is not None:
            past, capacity = int(cache.get_seq_length()), int(cache.get_mask_sizes(tokens, 0)[0])
        sizes = rows, patch.rule.heads, tokens, past + tokens
        check_shape(mask, "attention_mask", sizes, capacity)


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
    owner = layers[0] if first is None else first.table.table.owner
    if owner is not layers[0] and patch.own(owner) is not None:
        raise ValueError(
            f"model must have the layers that it had at the patch, got a {patch.family.name} "
            "without the first one, whose table of biases the others share: undo the patch"
        )


def _check_positions(value: Any, mask: Any, tokens: int) -> None:
    """Refuse position_ids of several texts in a row, of which no real token may go back.

    Padding may have any position, and a token may skip some, where there is padding.
    """
    positions = torch.as_tensor(value)
    if not positions.is_cpu or not has_values(positions) or positions.shape[-1] != tokens:
        return
    positions = torch.atleast_2d(positions)
    wrong = positions.diff(dim=-1) != 1
    if mask is not None and getattr(mask, "ndim", 0) == 2 and mask.shape[1] >= tokens:
        if not mask.is_cpu or not has_values(mask):
            return
        real = mask[:, -tokens:] != 0
        behind = torch.where(real, positions, positions.min() - 1).cummax(dim=-1).values[:, :-1]
        wrong = wrong & real[:, 1:] & (positions[:, 1:] <= behind)
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        before, after = positions[row, column : column + 2].tolist()
        raise ValueError(
            f"position_ids must rise by one from real token to real token, got {after} after "
            f"{before} in row {row}: {INSTEAD}"
        )


def _without_booleans(mask: Any, patch: Any) -> Any:
    """Return the mask with which a traceable model goes on.

    Layers of a family may take booleans of transformers' masks for hidden keys.
    """
    if mask is None or mask.ndim != 4 or not patch.family.masks_hidden:
        return mask
    if mask.dtype != torch.bool and not has_values(mask):
        return mask
    zeros = torch.zeros(mask.shape, device=mask.device)
    return zeros.masked_fill(~shown(mask, "attention_mask"), torch.finfo(torch.float32).min)

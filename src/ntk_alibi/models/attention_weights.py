"""A model's attention weights for a text, without and with several methods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from ntk_alibi import _checks
from ntk_alibi.integrations import families, patch
from ntk_alibi.integrations.overriding import in_evaluation
from ntk_alibi.methods import ORIGINAL, Method, as_method, train_length_or_default

#: Weights of one layer that a model may compute for a picture: 2 GiB in float32. The model needs
#: several times as much memory.
MOST_WEIGHTS = 2**29


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """Weights of some layers and heads of a model for one text, under one or several methods.

    Attributes:
        words: the string of each token.
        methods: the methods; None for the model as it is.
        layers: the layers, counted from 0.
        heads: the heads, counted from 1.
        totals: how many layers the model has, and how many heads each layer has.
        step: tokens of a cell.
        values: float32 (methods, layers, heads, cells, cells), queries before keys: the greatest
            weight of each cell; NaN where all keys are ahead of the queries.
    """

    words: tuple[str, ...]
    methods: tuple[Method | None, ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    totals: tuple[int, int]
    step: int
    values: NDArray[np.float32]


def attention_weights(
    model: Any,
    tokenizer: Any,
    text: str,
    methods: Sequence[Any] | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    *,
    most_maps: int,
    most_cells: int,
) -> AttentionWeights:
    """Return a model's attention weights; all arguments are checked before it computes anything.

    Args:
        model: a transformers model that returns attention weights.
        tokenizer: the model's tokenizer.
        text: text of at least one token.
        methods: names such as "ntk:4", scalings, or None or "original" for plain ALiBi; each is
            patched into the model meanwhile. By default, the model as it is.
        layers: layers, counted from 0 as in `layers` of a scaling, or from the end if negative; by
            default all.
        heads: heads, counted from 1 as in formulas; by default all.
        most_maps: greatest number of maps of queries and keys.
        most_cells: greatest number of cells of queries, and of keys, in a map.

    Raises:
        TypeError, ValueError: an argument is wrong; the text has no tokens, or too many.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    _checks.tokenizer(tokenizer)
    if not isinstance(text, str):
        raise TypeError(f"text must be a string, got {text!r}")
    totals = _shape(model)
    chosen = _layers(layers, totals[0])
    indices = list(_checks.heads(heads, totals[1]))
    named = _named(methods, model)
    maps = len(named) * len(chosen) * len(indices)
    _checks.integer("maps of methods x layers x heads", maps, minimum=1, maximum=most_maps)
    inputs = tokenizer(text, return_tensors="pt").to(model.device)
    ids = inputs["input_ids"][0].tolist()
    _checks.integer("number of tokens of text", len(ids), minimum=1)
    _check_size(len(ids), totals[1])
    step = -(-len(ids) // most_cells)
    return AttentionWeights(
        tuple(tokenizer.decode([token]) for token in ids),
        tuple(named),
        tuple(chosen),
        tuple(head + 1 for head in indices),
        totals,
        step,
        np.stack([_read(model, inputs, method, indices, step)[chosen] for method in named]),
    )


def _shape(model: Any) -> tuple[int, int]:
    """Return how many layers and heads a model has."""
    config = getattr(model, "config", None)
    layers = getattr(config, "num_hidden_layers", None)
    heads = getattr(config, "num_attention_heads", None)
    if layers is None or heads is None:
        raise TypeError(
            "model must be a transformers model whose config names num_hidden_layers and "
            f"num_attention_heads, got {type(model).__name__}"
        )
    return layers, heads


def _layers(value: Any, count: int) -> list[int]:
    if value is None:
        return list(range(count))
    if not isinstance(value, Iterable) or isinstance(value, str) or not (chosen := list(value)):
        raise TypeError(f"layers must be None or a sequence of layers, got {value!r}")
    return [
        _checks.integer("layer", number, minimum=-count, maximum=count - 1) % count
        for number in chosen
    ]


def _named(methods: Any, model: Any) -> list[Method | None]:
    if methods is None:
        return [None]
    if not isinstance(methods, Iterable) or isinstance(methods, str):
        raise TypeError(f"methods must be None or a sequence of methods, got {methods!r}")
    if not (several := list(methods)):
        raise ValueError(f"methods must hold at least one, got {methods!r}")
    named = [as_method(method, train_length_or_default(model.config)) for method in several]
    for method in named:
        with _patched(model, method):
            pass
    return list(named)


@contextmanager
def _patched(model: Any, method: Method) -> Iterator[None]:
    """Patch a model for a time."""
    scaling = ORIGINAL if method.scaling is None else method.scaling
    with patch(model, scaling, attention="eager", log_n=method.log_n):
        yield


def _check_size(tokens: int, heads: int) -> None:
    most = int((MOST_WEIGHTS / heads) ** 0.5)
    if tokens > most:
        raise ValueError(
            f"text must have at most {most} tokens, for which a layer of {heads} heads computes "
            f"{MOST_WEIGHTS} weights, got {tokens}"
        )


def _read(
    model: Any, inputs: Any, method: Method | None, heads: list[int], step: int
) -> NDArray[np.float32]:
    """Return the weights (layers, heads, cells, cells) of one pass."""
    of_method: Any = nullcontext() if method is None else _patched(model, method)
    with of_method, torch.no_grad(), in_evaluation(model), _kept(model, heads, step) as kept:
        output = model(**inputs, output_attentions=True, use_cache=False)
    pooled = kept or [_pooled(weights, heads, step) for weights in output.attentions or ()]
    if not pooled:
        raise ValueError(
            f"model must return attention weights, got none from {type(model).__name__}"
        )
    return np.stack(pooled)


@contextmanager
def _kept(model: nn.Module, heads: list[int], step: int) -> Iterator[list[NDArray[np.float32]]]:
    """Yield a list that gets each layer's weights, pooled as soon as the layer has computed them.

    transformers returns the weights of all layers at once: 2.4 GB for 24 heads and 5000 tokens.
    """
    kept: list[NDArray[np.float32]] = []

    def keep(module: nn.Module, inputs: Any, output: Any) -> Any:
        del module, inputs
        kept.append(_pooled(output[1], heads, step))
        return (output[0], output[1][..., :0, :0], *output[2:])

    family, targets = families.found(model)
    layers = [layer for target in targets for layer in family.layers(target)] if family else []
    handles = [layer.register_forward_hook(keep) for layer in layers]
    try:
        yield kept
    finally:
        for handle in handles:
            handle.remove()


def _pooled(weights: torch.Tensor, heads: list[int], step: int) -> NDArray[np.float32]:
    """Return the greatest weight of each cell (heads, cells, cells), NaN ahead of the queries."""
    values = weights[:, heads].float()
    if bool(values.isnan().any()):
        raise ValueError("model must compute attention weights without NaN, got some")
    if step > 1:
        values = F.max_pool2d(values, step, ceil_mode=True)
    array: NDArray[np.float32] = values[0].cpu().numpy()
    seen = np.tril(np.ones(array.shape[1:], bool))
    return np.where(seen | (array > 0), array, np.float32(np.nan))

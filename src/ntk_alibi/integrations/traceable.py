"""The form of attention that torch can trace: plain torch, on the masks that transformers makes.

A layer reads all distances from its mask of queries and keys, so that every cache, export and
compilation that works with transformers' own layers works with these. Nothing depends on a number
of a tensor but numbers of other tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from ntk_alibi import _arrays, _checks
from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.integrations.arguments import by_name, check_padding
from ntk_alibi.integrations.cache_argument import CACHE, cache_of, check_cache_in_use
from ntk_alibi.integrations.caches.window import WindowCache
from ntk_alibi.integrations.layer_attention import HIDES, attend_densely, check_heads
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.scaling import Bend, at_layer, without_knee
from ntk_alibi.torch.learned_bias import Float32Parameters

#: The submodule of a patched attention layer.
_BIAS = "ntk_alibi_bias"


class LayerBias(Float32Parameters):
    """The bias of one layer, as a module: its slopes are in exported graphs, and move with it.

    Attributes:
        slopes: (heads, 1, 1), float32 in models of any dtype.
        strengths: those of a `LogN`, (heads, 1), float64, or None.
        bend: a knee whose factor is a number, or None.
        log_n: a `LogN`, or None.
        counts_holes: whether distances count padding between real tokens.
    """

    slopes: torch.Tensor
    strengths: torch.Tensor | None

    def __init__(self, rule: ModelSlopes, settings: Settings, layer: nn.Module) -> None:
        super().__init__()
        scaling = at_layer(settings.scaling, cast(int, layer.layer_idx))
        knee = without_knee(scaling)[1]
        slopes = torch.from_numpy(rule.numbers(scaling)).reshape(rule.heads, 1, 1)
        device = next(layer.parameters()).device
        strengths = settings.log_n and settings.log_n.per_head
        self.register_buffer("slopes", slopes.to(device), persistent=False)
        self.register_buffer(
            "strengths",
            None if strengths is None else torch.from_numpy(strengths).to(device),
            persistent=False,
        )
        self.bend: Bend | None = None if knee is None else knee.bend(None)
        self.log_n = settings.log_n
        self.counts_holes = rule.counts_holes

    def forward(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the bias of keys, and factors of scores.

        Args:
            seen: (batch, 1, queries, keys), True where a query sees a key.

        Returns:
            (batch, heads, queries, keys), 0 at each query's last key, and (batch, 1 or heads,
            queries, 1) or None; both float32.
        """
        numbers = seen.long().cumsum(dim=-1)
        count = numbers[..., -1:]
        if self.counts_holes:
            columns = torch.arange(seen.shape[-1], device=seen.device)
            last = torch.where(seen, columns, 0).amax(dim=-1, keepdim=True)
            distance = (last - columns).clamp(min=0)
        else:
            distance = count - numbers
        bent = distance if self.bend is None else self.bend.bent(distance)
        bias = -self.slopes * bent
        if self.log_n is None:
            return bias, None
        counts = count[:, 0, :, 0].clamp(min=1).double()
        factors = self.log_n.factors_of(counts, self.strengths)
        factors = factors.float()[..., None]
        return bias * factors if self.log_n.biased else bias, factors


@dataclass(frozen=True)
class TraceableAttention:
    """The attention of one layer by a mask of queries and keys, in place of a `PassAttention`.

    Attributes:
        layer: the number of the layer.
        bias: the bias of the layer.
        mask: (batch, 1, queries, keys), True for seen keys, or numbers to add to the scores.
    """

    layer: int
    bias: LayerBias
    mask: torch.Tensor
    stock = None

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: Any,
        scale: float,
        dropout: float = 0.0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return attention output and all weights, of what `PassAttention` takes."""
        if cache is not None:
            key, value = cache.update(key, value, self.layer)
        boolean = self.mask.dtype == torch.bool
        seen = self.mask if boolean else self.mask >= HIDES
        bias, factors = self.bias(seen)
        bias = bias if boolean else bias + self.mask
        bias = bias.masked_fill(~seen, torch.finfo(bias.dtype).min)
        return attend_densely(query, key, value, bias, factors, scale, dropout)


def of_layer(
    layer: nn.Module,
    mask: Any,
    heads: int,
    hidden_states: torch.Tensor,
    output: Any,
    *,
    masks_hidden: bool = False,
) -> TraceableAttention:
    """Return the attention of a layer, an `AttentionOf`.

    Args:
        layer: the layer.
        mask: transformers' mask of queries and keys, boolean or of numbers to add to the scores.
        heads: the number of heads that the layer computes.
        hidden_states: the input of the layer, (batch, queries, channels of all heads).
        output: the layer's product with the outputs of its heads.
        masks_hidden: whether a boolean mask is True for hidden keys.
    """
    name, bias = type(layer).__name__, cast(LayerBias, getattr(layer, _BIAS))
    if hasattr(output.weight, "device_mesh"):
        raise ValueError(
            "attention must be 'fused' under tensor parallelism, got 'traceable' with a "
            f"divided {name}"
        )
    check_heads(layer, hidden_states, heads, len(bias.slopes))
    if getattr(mask, "ndim", None) != 4:
        raise RuntimeError(
            f"transformers made no mask of queries and keys for {name}, from which a patch with "
            f"attention='traceable' reads distances, got {type(mask).__name__}: use "
            "attention='eager'"
        )
    number = cast(int, layer.layer_idx)
    return TraceableAttention(number, bias, ~mask if masks_hidden else mask)


def begin(
    names: tuple[str, ...], model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[()], dict[str, Any]]:
    """Check a model's arguments, whose names are given; called before a patched model's forward.

    A boolean mask of four dimensions, True for seen keys, becomes one of numbers to add:
    transformers' MPT would take it for one of hidden keys.
    """
    _checks.whole_sequences()
    kwargs = by_name(names, args, kwargs)
    for name in ("input_ids", "inputs_embeds", "attention_mask"):
        _checks.plain(name, kwargs.get(name))
    cache, mask = cache_of(kwargs), kwargs.get("attention_mask")
    if isinstance(cache, WindowCache):
        raise ValueError(
            f"{CACHE} must not be a WindowCache with attention='traceable', which has no "
            "window: use attention='fused', or another cache"
        )
    if not _arrays.is_tracing():
        inputs = [kwargs.get("input_ids"), kwargs.get("inputs_embeds")]
        tokens = max((x.shape[1] for x in inputs if x is not None), default=0)
        check_cache_in_use(cache, kwargs.get("use_cache"), tokens)
        check_padding(mask)
    if mask is not None and mask.ndim == 4 and mask.dtype == torch.bool:
        least = torch.finfo(torch.float32).min
        zeros = torch.zeros(mask.shape, device=mask.device)
        kwargs["attention_mask"] = zeros.masked_fill(~mask, least)
    return (), kwargs


def add_bias(layer: nn.Module, rule: ModelSlopes, settings: Settings) -> None:
    """Give an attention layer the bias of these settings."""
    setattr(layer, _BIAS, LayerBias(rule, settings, layer))


def remove_bias(layer: nn.Module) -> None:
    """Undo `add_bias`."""
    delattr(layer, _BIAS)

"""The form of attention that torch can trace: plain torch, on the masks that transformers makes.

A layer reads all distances from its mask of queries and keys, so that every cache, export and
compilation that works with transformers' own layers works with these. Only values of
tensors depend on values of tensors, no shape or branch does.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.integrations.arguments import CACHE, check_not_repeated
from ntk_alibi.integrations.attend import Attend
from ntk_alibi.integrations.attention_forms import softmax_attention
from ntk_alibi.integrations.caches import Bounded
from ntk_alibi.integrations.caller_masks import HIDES
from ntk_alibi.integrations.forward_pass import LayerCall
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.torch.learned_bias import Float32Parameters

#: The submodule of a patched attention layer.
BIAS = "ntk_alibi_bias"


class LayerBias(Float32Parameters):
    """The bias of one layer, as a module: its slopes are in exported graphs, and move with it.

    Attributes:
        slopes: (heads, 1, 1), float32 in models of any dtype.
        strengths: the strengths of a `LogN`, (heads, 1), float64, or None.
        log_n: a `LogN`, or None.
        counts_holes: whether distances count padding between real tokens.
    """

    slopes: torch.Tensor
    strengths: torch.Tensor | None

    def __init__(self, rule: ModelSlopes, settings: Settings, layer: nn.Module) -> None:
        super().__init__()
        slopes = torch.from_numpy(rule.slopes(settings.scaling)).reshape(rule.heads, 1, 1)
        # Layers of quantized weights may have no parameters.
        device = next(itertools.chain(layer.parameters(), layer.buffers()), slopes).device
        strengths = settings.log_n and settings.log_n.per_head
        self.register_buffer("slopes", slopes.to(device), persistent=False)
        self.register_buffer(
            "strengths",
            None if strengths is None else torch.from_numpy(strengths).to(device),
            persistent=False,
        )
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
        ranks = seen.long().cumsum(dim=-1)
        count = ranks[..., -1:]
        if self.counts_holes:
            columns = torch.arange(seen.shape[-1], device=seen.device)
            last = torch.where(seen, columns, 0).amax(dim=-1, keepdim=True)
            distance = (last - columns).clamp(min=0)
        else:
            distance = count - ranks
        bias = -self.slopes * distance
        if self.log_n is None:
            return bias, None
        counts = count[:, 0, :, 0].clamp(min=1).double()
        factors = self.log_n.factors_for_counts(counts, self.strengths)
        factors = factors.float()[..., None]
        return bias, factors


class TraceableAttend(Attend):
    """The attention of one layer by a mask of queries and keys; the layer has its `LayerBias`."""

    def compute(self, call: LayerCall) -> tuple[torch.Tensor, torch.Tensor]:
        """Return attention output and all weights; the form that `Attend` does not hide of torch.

        The mask is transformers' mask of queries and keys, boolean or of values to add to scores.
        """
        layer: Any = self.layer
        key, value, mask, cache = call.key, call.value, call.mask, call.cache
        if isinstance(cache, Bounded):
            raise ValueError(
                f"{CACHE} must hold all tokens with attention='traceable', which has no window, "
                f"got a {type(cache).__name__}: use attention='fused', or another cache"
            )
        layer_bias: LayerBias = getattr(layer, BIAS)
        self.check_heads()
        if getattr(mask, "ndim", None) != 4:
            raise RuntimeError(
                f"transformers made no mask of queries and keys for {type(layer).__name__}, "
                "from which a patch with attention='traceable' reads distances, got "
                f"{type(mask).__name__}: use attention='eager'"
            )
        if cache is not None:
            if self.number == 0 and self.may_repeat():
                check_not_repeated(key, cache, self.index)
            key, value = cache.update(key, value, layer.layer_idx)
        mask = ~mask if self.family.masks_hidden else mask
        boolean = mask.dtype == torch.bool
        seen = mask if boolean else mask >= HIDES
        bias, factors = layer_bias(seen)
        bias = bias if boolean else bias + mask
        bias = bias.masked_fill(~seen, torch.finfo(bias.dtype).min)
        return softmax_attention(call.query, key, value, bias, factors, call.scale, call.dropout)

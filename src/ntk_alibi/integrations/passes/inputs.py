"""What a layer hands over when it begins a pass, and what any pass refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from ntk_alibi import _checks
from ntk_alibi._torch_state import JIT, find_tracer
from ntk_alibi.integrations import own_bias
from ntk_alibi.integrations.layer_call import LayerCall, Sizes
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.integrations.tokens import Tokens
from ntk_alibi.masks import EVERYTHING, Mask


class PassInputs(NamedTuple):
    """What the first layer of a pass got.

    Attributes:
        attend: the `Attend` of the layer.
        mask: the mask, or None.
        sizes: batch, new tokens, and keys without the keys of a cache.
        device: the device of the queries.
        cache: the cache before this pass, or None.
        past: the number of tokens that the cache has seen.
        settings: the choices of the patch in force.
        own: biases in place of slopes, by layers, or by None for all layers; bias objects, and
            modules and functions that return them.
    """

    attend: Any
    mask: Any
    sizes: Sizes
    device: torch.device
    cache: Any
    past: int
    settings: Settings
    own: Mapping[Any, Any]

    @staticmethod
    def of(attend: Any, tokens: Tokens, call: LayerCall) -> PassInputs:
        """Check the state of the model and of torch, and return what a layer got.

        Args:
            attend: the `Attend` of the layer.
            tokens: the tokens.
            call: the call of the layer.
        """
        patch, family = attend.patch, attend.family
        model, settings = patch.model, patch.settings
        _checks.check_no_context_parallel()
        if attend.causal and not getattr(getattr(model, "config", None), "is_causal", True):
            raise ValueError(
                f"config.is_causal must be True for a patched {type(model).__name__}, got False"
            )
        if call.weights or tokens.weights:
            settings = replace(settings, attention="eager")
        if tracer := find_tracer():
            _check_tracer(tracer, family, settings)
        own = own_bias.biases_of(model, settings.bias) if settings.bias is not None else {}
        if family.decoder:
            attend.check_heads()
        cache, device = call.cache, call.query.device
        past = 0 if cache is None else int(cache.get_seq_length(attend.index))
        return PassInputs(attend, tokens.mask, call.sizes, device, cache, past, settings, own)

    @property
    def name(self) -> str:
        """The name of the mask in messages: layers of transformers get the model's argument."""
        if self.attend.crosses:
            return "encoder_attention_mask"
        return "mask" if self.attend.family.code is None else "attention_mask"

    @property
    def masks_pairs(self) -> bool:
        """Whether the mask alone says which keys each query sees.

        Layers of others add a mask of keys alone to a causal one of their own.
        """
        if getattr(self.mask, "ndim", 2) != 4:
            return False
        of_keys = tuple(self.mask.shape[1:3]) == (1, 1)
        return not of_keys or (self.attend.causal and self.attend.family.code is not None)

    def count_places(self) -> int:
        """Return the number of keys that the layer will get: of a static cache, all its places."""
        _, queries, keys = self.sizes
        if self.cache is None:
            return keys
        return int(self.cache.get_mask_sizes(queries, self.attend.index)[0])

    def limits(self, end: int) -> Mask:
        """Return which of the keys before `end` queries see by their positions."""
        mask = self.settings.mask
        if not self.attend.causal:
            return mask._replace(causal=False)
        limited = mask.interval(end - 1)[0] > mask.sink  # the last query does not see all
        return mask if limited else EVERYTHING


def _check_tracer(tracer: str, family: Any, settings: Settings) -> None:
    """Refuse what traces a form that reads the mask."""
    if tracer == JIT or settings.attention != "eager":
        advice = "use patch(model, method, attention='traceable')"
        if not family.decoder:
            advice = "take the model without patch"
        raise ValueError(
            f"attention must be 'traceable' where {tracer} traces a patched model, got "
            f"{settings.attention!r}, which reads the mask: {advice}"
        )

"""Patches of live transformers models: the public `patch` and the families it knows."""

from __future__ import annotations

from typing import Literal

from torch import nn

from ntk_alibi import _validation
from ntk_alibi.integrations import bloom
from ntk_alibi.integrations.patching import Family, PatchHandle, Settings, apply
from ntk_alibi.scaling import Scaling

FAMILIES: tuple[Family, ...] = (bloom.FAMILY,)

ATTENTIONS = ("sdpa", "eager")


def patch(
    model: nn.Module,
    scaling: Scaling | None = None,
    *,
    attention: Literal["sdpa", "eager"] = "sdpa",
) -> PatchHandle:
    """Give a live ALiBi model another scaling and another attention, in place and revocably.

    Only this instance changes. It stays patched until `.undo()` of the returned handle, or the end
    of a `with` block.
    Patches nest: the newest counts, and undoing it brings the one before back. Weights, config,
    save_pretrained, generate(), caches, padding and gradient checkpointing keep working.

    Args:
        model: a transformers BLOOM model of any head, or a module that holds one.
        scaling: a scaling, or None for plain ALiBi.
        attention: "sdpa" runs torch's fused kernel on exact float32 distances without a queries x
            keys mask; "eager" keeps transformers' own arithmetic (with scaling=None its very bits)
            and its memory need. Both return attention weights if output_attentions asks for them,
            "sdpa" by falling back to "eager".

    Returns:
        The handle, a context manager with `.undo()`.

    Raises:
        TypeError: model is no torch module, or scaling none.
        ValueError: the model has no ALiBi attention known here, or attention is unknown.
        RuntimeError: the transformers version is unknown, or its code is not what the patch
            expects.

    Example:
        >>> import torch, transformers, ntk_alibi as na
        >>> config = transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4)
        >>> model = transformers.BloomForCausalLM(config).eval()
        >>> ids = torch.arange(12)[None]
        >>> before = model(ids).logits
        >>> with na.patch(model, na.NTK(4.0)):
        ...     stretched = model(ids).logits
        >>> bool((stretched != before).any()), bool((model(ids).logits == before).all())
        (True, True)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    _validation.scaling(scaling)
    _validation.choice("attention", attention, ATTENTIONS)
    for family in FAMILIES:
        if targets := family.find(model):
            return apply(family, targets, Settings(scaling, attention))
    known = ", ".join(family.name for family in FAMILIES)
    raise ValueError(
        f"model must hold ALiBi attention of a known family ({known}), got {type(model).__name__}, "
        "which a patch would leave as it is"
    )


__all__ = ["PatchHandle", "patch"]

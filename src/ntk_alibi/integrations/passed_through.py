"""Objects that transformers passes through in place of a mask, and the padding that models get."""

from __future__ import annotations

from typing import Any, NoReturn, cast

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask

from ntk_alibi import _arrays
from ntk_alibi.masks import EVERYTHING, checked_attention_mask


class PassedThrough(BlockMask):
    """An object that transformers passes to the layers in place of a mask of all pairs.

    It is a subclass of `BlockMask` only because transformers does not touch block masks.
    """

    misuse = ""

    def __init__(self, mask: torch.Tensor | None) -> None:
        self.mask = mask

    def to(self, *_: Any, **__: Any) -> PassedThrough:
        """Return itself; layers move what they need to their device."""
        return self

    def contiguous(self) -> PassedThrough:
        """Return itself."""
        return self

    def __getitem__(self, index: Any) -> Any:
        """Refuse to be cut to the keys of a layer, as a mask of all pairs is."""
        raise RuntimeError(self.misuse)

    @classmethod
    def baddbmm(cls, *_: Any, **__: Any) -> NoReturn:
        """Refuse the product that transformers' BLOOM calls on its bias."""
        raise RuntimeError(cls.misuse)

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any, **__: Any) -> NoReturn:
        """Refuse the operations that transformers' other models do with a mask."""
        raise RuntimeError(cls.misuse)


class Padding(PassedThrough):
    """A padding mask (batch, keys), or None, that generate() passes to a model's forward."""

    misuse = (
        "attn_implementation='ntk_alibi' must be given when a BLOOM, MPT, Falcon, T5 or MPNet is "
        "made, to from_pretrained or from_config; this model was made without it, or is of another "
        "family"
    )
    ndim = 2  # Falcon adds its bias to masks of four dimensions


class PackedTexts(Padding):
    """The texts of packed rows on their way to the model whose layers attend.

    Attributes:
        queries: the number of its text for each new token, (rows, tokens).
        keys: the same for each key, (rows, keys).
        cache: what adds new keys to those of a paged cache, or None.
    """

    def __init__(self, queries: torch.Tensor, keys: torch.Tensor, cache: Any = None) -> None:
        super().__init__(None)
        self.queries = queries
        self.keys = keys
        self.cache = cache


class AskedLogits(Padding):
    """A padding mask on its way to a model on several ranks, whose head is asked for some logits.

    Attributes:
        keep: the head's logits_to_keep.
    """

    def __init__(self, mask: torch.Tensor | None, keep: Any) -> None:
        super().__init__(mask)
        self.keep = keep


def given_mask(kwargs: dict[str, Any]) -> Any:
    """Return the attention_mask that the caller of a model gave, also by way of generate()."""
    mask = kwargs.get("attention_mask")
    return mask.mask if isinstance(mask, Padding) else mask


def check_padding(mask: Any) -> None:
    """Check the numbers of a padding mask (batch, keys) where they can be read at no cost."""
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2 or mask.dtype == torch.bool:
        return
    if mask.is_cpu and _arrays.has_values(mask):
        checked_attention_mask(mask)


def padding_of(
    model: nn.Module, mask: Any, sizes: tuple[int, int, int], device: torch.device
) -> torch.Tensor:
    """Return a model's attention_mask as (batch, keys), True for real keys.

    Causal masks of four dimensions, which generate() makes for a static cache, are read, too.
    """
    batch, past, queries = sizes
    seen = past + queries
    if mask is None:
        return torch.ones((batch, seen), dtype=torch.bool, device=device)
    if mask.ndim == 4 and mask.shape[:3] == (batch, 1, queries) and mask.shape[3] >= seen:
        seen_keys = mask if mask.dtype == torch.bool else mask == 0
        padding: torch.Tensor = seen_keys[:, 0, -1]
        columns = torch.arange(mask.shape[3], device=mask.device)
        causal = EVERYTHING.visible(columns[past:seen], columns)
        if torch.equal(seen_keys, padding[:, None, None, :] & causal):
            return padding.to(device)
    if mask.ndim != 2 or mask.shape[0] != batch or mask.shape[1] < seen:
        raise ValueError(
            f"attention_mask must have shape (batch, keys) = ({batch}, {seen}) for a patched "
            f"{type(model).__name__}, or be the causal mask of such padding, got "
            f"{'another mask of shape ' * (mask.ndim == 4)}{tuple(mask.shape)}"
        )
    return cast(torch.Tensor, mask != 0).to(device)

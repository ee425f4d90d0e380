"""Objects that transformers passes through in place of a mask."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch.nn.attention.flex_attention import BlockMask


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

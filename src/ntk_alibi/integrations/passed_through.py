"""Objects that transformers passes through in place of a mask."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch.nn.attention.flex_attention import BlockMask


class PassedThrough(BlockMask):
    """What goes through transformers in place of a mask of all queries and keys.

    A `BlockMask` by name only: transformers hands those on as they are.
    """

    misuse = ""

    def __init__(self, mask: torch.Tensor | None) -> None:
        self.mask = mask

    def to(self, *_: Any, **__: Any) -> PassedThrough:
        """Itself; what a layer needs is moved to the layer's device."""
        return self

    def contiguous(self) -> PassedThrough:
        """Itself."""
        return self

    @classmethod
    def baddbmm(cls, *_: Any, **__: Any) -> NoReturn:
        """What transformers' BLOOM would ask a tensor for."""
        raise RuntimeError(cls.misuse)

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any, **__: Any) -> NoReturn:
        """What transformers' other models would do with a tensor."""
        raise RuntimeError(cls.misuse)


class Padding(PassedThrough):
    """A padding mask (batch, keys), or None, on its way to a model's forward through generate()."""

    misuse = (
        "attn_implementation='ntk_alibi' must be given when a BLOOM, MPT or Falcon model is made, "
        "to from_pretrained or from_config; this model was made without it, or is another"
    )
    ndim = 2  # not the four of what Falcon folds its bias into

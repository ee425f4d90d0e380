"""What the layers of a patched model remember of the masks that they got."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ntk_alibi.integrations.tokens import Tokens, version_of


class MaskMemory:
    """What a model's layers share of the masks that they get; a copy of the model has none.

    Attributes:
        tokens: the tokens of masks, where transformers did not pass `Tokens` to the layers, by the
            mask object, weakly, or by this object where there is no mask, each with what else its
            pass is made of.
        crossing: the last pass of cross-attention, which the steps of a generation share, with what
            it was made of, whose values are compared, or None.
    """

    def __init__(self) -> None:
        self.tokens: Any = WeakIdKeyDictionary()
        self.crossing: tuple[Any, torch.Tensor, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def tokens_of(self, mask: Any, of: tuple[Any, ...], attend: Any) -> Tokens:
        """Return the tokens of a mask that is not transformers' `Tokens`, which layers share.

        Args:
            mask: the mask, or None.
            of: what else the pass is made of.
            attend: the `Attend` of the layer.
        """
        of = version_of(mask), *of
        owner = self if mask is None else mask
        known = self.tokens.get(owner)
        # The first layer begins a pass, and the others go on, also when they run again.
        if attend.number > 0 and known is not None and known[0] == of:
            tokens: Tokens = known[1]
        else:
            hidden = attend.family.masks_hidden and getattr(mask, "ndim", 2) == 4
            tokens = Tokens(~mask if hidden and mask.dtype == torch.bool else mask)
        if mask is None and attend.ends and not torch.is_grad_enabled():
            self.tokens.pop(owner, None)  # what does not run again is not kept
        else:
            self.tokens[owner] = of, tokens
        return tokens

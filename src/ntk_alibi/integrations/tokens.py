"""The tokens of a pass, which transformers passes to the layers in place of a mask.

Layers of remote code and of compiled graphs get masks; `MaskMemory` keeps the tokens of these. Such
a layer is not told the patch of its forward pass where it runs again in a backward pass, since a
checkpoint keeps inputs alone: `of_same_patch` compares the two.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar, cast

import torch
from torch.nn.attention.flex_attention import BlockMask
from torch.utils.weak import WeakIdKeyDictionary

from ntk_alibi._torch_state import is_recorded, is_transformed

Function = TypeVar("Function", bound=Callable[..., Any])

MISUSE = (
    "a layer must attend by the patch of its model to read its tokens, got a layer without patch: "
    "patch again after replacing layers, and let a patch stay until the backward pass of a "
    "gradient-checkpointed forward is done, which runs that forward again"
)

ANOTHER_PATCH = (
    "the patch must stay as it is until the backward pass of a compiled or checkpointed model is "
    "done, which computes weights again: call backward() inside of the patch"
)

#: Message of torch where it cannot trace a patched model in one graph.
WAY_TO_TRACE = (
    "ntk_alibi: attention must be 'traceable' for torch.export, and for torch.compile with "
    "fullgraph=True where weights are wanted or dropped, a bias is trained, a BLOOM attends by "
    "'eager', or the cache is a GrowingCache, a WindowCache, or a static one with gradients: use "
    "patch(model, method, attention='traceable'); fullgraph must be False for a model of a family "
    "without such a form"
)


def untraced(function: Function) -> Function:
    """Exclude a function from torch.compile, since it depends on the entries of the mask."""
    return cast(Function, torch.compiler.disable(function, reason=WAY_TO_TRACE))


def refuse(*_: Any, **__: Any) -> NoReturn:
    """Refuse what layers without a patch do with a mask."""
    raise RuntimeError(MISUSE)


class Tokens(BlockMask):
    """The tokens of a pass: what all its layers need.

    It is a subclass of `BlockMask` only because transformers does not touch block masks.

    Attributes:
        patch: the `Patch` of the model.
        mask: the attention_mask that the caller gave, True or 1 for visible keys, or None.
        weights: whether the caller wants attention weights, where layers are not told.
        may_repeat: whether the cache may hold these tokens already.
        forward_pass: the `Pass` that the first layer makes of them, or None before.
    """

    shape: Any = (1, 1, 1, 1)  # transformers leaves masks of four dimensions as they are

    def __init__(self, patch: Any = None, mask: Any = None) -> None:
        self.patch, self.mask = patch, mask
        self.weights = self.may_repeat = False
        self.forward_pass: Any = None

    def __repr__(self) -> str:
        return f"<tokens of {self.patch!r}>"

    __str__ = __repr__

    def __deepcopy__(self, _: Any) -> Tokens:
        """Return itself, with which a layer runs again as it ran."""
        return self

    def __reduce_ex__(self, _: Any) -> NoReturn:
        """Refuse to be written: a file would hold the whole model."""
        raise TypeError(
            "arguments of a patched layer must not be pickled, got the tokens of a living model: "
            "call na.unpatch(model) before layers' arguments are kept in files"
        )

    def to(self, *_: Any, **__: Any) -> Tokens:
        """Return itself; layers move what they need to their device."""
        return self

    def contiguous(self) -> Tokens:
        """Return itself."""
        return self

    # What stock code does with a mask: Falcon's model asks for ndim, T5's layers for dtype, others
    # cut it to the keys of a layer; BLOOM's layers add products to their bias.
    ndim: Any = property(refuse)
    dtype: Any = property(refuse)
    __getitem__: Any = refuse
    baddbmm: Any = refuse
    __torch_function__: Any = classmethod(refuse)


class MaskMemory:
    """What a model's layers share of the masks that they get; a copy of the model has none.

    Attributes:
        tokens: the tokens of masks that layers got in place of `Tokens`, of self-attention and of
            cross-attention, by the mask object, weakly, or by this object where there is no mask,
            each with what else its pass is made of.
        crossing: the last pass of cross-attention, which the steps of a generation share, with what
            it was made of, whose values are compared, or None.
    """

    def __init__(self) -> None:
        self.tokens: Any = (WeakIdKeyDictionary(), WeakIdKeyDictionary())
        self.crossing: tuple[Any, torch.Tensor, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def tokens_of(self, mask: Any, of: tuple[Any, ...], running: Any, attend: Any) -> Tokens:
        """Return the tokens of a mask, which layers share.

        Args:
            mask: the mask, or None.
            of: what else the pass is made of.
            running: the tokens of the call of the model, or None where a layer runs again.
            attend: the `Attend` of the layer.
        """
        # It rises when torch changes a mask in place.
        version = None if mask is None or mask.is_inference() else mask._version
        of = version, *of
        owner, kind = self if mask is None else mask, self.tokens[attend.crosses]
        kept = kind.get(owner)
        # The first layer begins a pass, and the others go on, also when they run again. A model may
        # run amid its own pass, and in several threads.
        goes_on = attend.number > 0 and kept is not None and kept[0] == of
        if goes_on and (running is None or kept[1]() is running):
            tokens: Tokens = kept[2]
        else:
            tokens = Tokens(attend.patch, mask)
        if mask is None and attend.ends and not torch.is_grad_enabled():
            kind.pop(owner, None)  # what does not run again is not kept
        else:
            call = tokens if running is None else running
            kind[owner] = of, weakref.ref(call), tokens
        return tokens

    def knows(self, values: Iterable[Any]) -> bool:
        """Return whether a layer got one of these values as its mask."""
        masks = [x for x in values if isinstance(x, torch.Tensor)]
        return any(mask in kind for mask in masks for kind in self.tokens)


class _SamePatch(torch.autograd.Function):
    """The identity, whose backward pass compares the patch of the layer that runs again."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, serial: torch.Tensor) -> torch.Tensor:
        ctx.serial = int(serial)
        ctx.save_for_backward(serial)  # a checkpoint saves it anew
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        if int(ctx.saved_tensors[0]) != ctx.serial:
            raise ValueError(ANOTHER_PATCH)
        return gradients[0], None


def of_same_patch(output: torch.Tensor, serial: int) -> torch.Tensor:
    """Return a layer's output, whose backward pass refuses a layer that ran again otherwise.

    Args:
        output: the output.
        serial: the number of the patch.
    """
    if not is_recorded(output) or is_transformed(maps=True):
        return output
    same: torch.Tensor = _SamePatch.apply(output, torch.tensor(serial))  # type: ignore[no-untyped-call]
    return same

"""Products of a patched model's linear layers, by oneDNN where that is faster than torch's own way.

On processors of other makers than Intel, MKL, which torch takes for float32, leaves AVX-512 unused
and multiplies a few rows on one thread; oneDNN, which the same torch takes for bfloat16, uses all.
torch reaches oneDNN's float32 product by a private operator only, so the operator is looked for,
and everything but the plain case stays torch's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from ntk_alibi import _arrays, _core
from ntk_alibi.integrations.overriding import overridden, override, restore
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.integrations.transformers_versions import around, is_pretrained


class Sizes(NamedTuple):
    """The sizes of products that oneDNN computes.

    Attributes:
        numbers: the least numbers of a weight.
        rows: the most rows of an input.
    """

    numbers: int = 1
    rows: float = math.inf


#: Sizes with which "auto" takes oneDNN. Its operator costs 15 us more a call than torch's function,
#: and a row on half a million numbers takes torch 60 us (both on Zen 4).
WITH_AVX512 = Sizes(numbers=2**19)

#: Without AVX-512 both have the same instructions: oneDNN is 1.8 times as fast for 64 rows, 1.3
#: for 256, and MKL a tenth faster from 2048 on (Zen 3, two threads, benchmarks/results/tables.md).
WITH_AVX2 = WITH_AVX512._replace(rows=256)

#: The attribute of a patched model that keeps its heads, in a tuple, so that they are no parts.
_HEADS = "_ntk_alibi_heads"

_ARGUMENTS = ["X", "W", "B", "attr", "scalars", "algorithm"]


def find_product() -> Callable[..., torch.Tensor] | None:
    """Return oneDNN's linear product in this torch, or None if it is missing or another."""
    operator: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    operator = getattr(operator, "default", None)
    if operator is None or [x.name for x in operator._schema.arguments] != _ARGUMENTS:
        return None
    runs = torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CPU")
    return operator if runs else None


#: oneDNN's linear product in this torch, or None.
PRODUCT = find_product()


def check(settings: Settings) -> None:
    """Check that torch has the products that a patch asks for by name."""
    if settings.linear == "onednn" and PRODUCT is None:
        raise ValueError(
            "linear must be 'auto' or 'torch' where torch has no product of oneDNN for plain "
            f"weights, got {settings.linear!r}"
        )


def keep_heads(model: nn.Module, target: nn.Module) -> None:
    """Let a target know the layers of logits above it, which are no parts of it."""
    models = [part for part in around(model, target) if is_pretrained(part)]
    heads = [cast(Any, part).get_output_embeddings() for part in models]
    if heads := [head for head in heads if head is not None]:
        setattr(target, _HEADS, tuple(heads))


def choose(target: nn.Module, classes: tuple[type[nn.Module], ...], settings: Settings) -> None:
    """Give a model's linear layers of exactly these classes the products of these settings.

    A layer with a forward of its own, which somebody else gave it, keeps that.
    """
    _restore(target)
    sizes = _sizes(settings)
    if sizes is None or PRODUCT is None:
        return
    for module in _parts(target):
        if type(module) in classes and "forward" not in vars(module):
            override(module, "forward", functools.partial(_forward, sizes))


def give_back(target: nn.Module) -> None:
    """Undo `choose` and `keep_heads`."""
    _restore(target)
    if hasattr(target, _HEADS):
        delattr(target, _HEADS)


def _restore(target: nn.Module) -> None:
    """Restore the layers, also those that a wrapper has since moved to another place."""
    for module in _parts(target):
        if overridden(module, "forward", _forward):
            restore(module, "forward")


def _parts(target: nn.Module) -> list[nn.Module]:
    return [*target.modules(), *getattr(target, _HEADS, ())]


def _sizes(settings: Settings) -> Sizes | None:
    """Return the sizes of products that oneDNN computes, or None for no product."""
    if settings.linear == "onednn":
        return Sizes()
    if settings.linear == "torch" or settings.attention in ("eager", "traceable"):  # torch's
        return None
    if not torch.backends.mkl.is_available() or _core.cpu_vendor() == "intel":
        return None
    return WITH_AVX512 if torch.backends.cpu.get_cpu_capability() == "AVX512" else WITH_AVX2


def _forward(sizes: Sizes, linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """Replace the forward of nn.Linear, and of classes that compute the same."""
    weight, bias = linear.weight, linear.bias
    if PRODUCT is None or not _is_plain(sizes, x, weight, bias):
        result: torch.Tensor = type(linear).forward(linear, x)
        return result
    return PRODUCT(x, weight, bias, "none", [], "")


def _is_plain(
    sizes: Sizes, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> bool:
    """Return whether a product is one of dense float32 numbers of which nothing is recorded."""
    return (
        type(x) is torch.Tensor
        and not _arrays.needs_torch(x, weight, bias, None)
        and not _arrays.is_watched()
        and all(type(y) in (nn.Parameter, torch.Tensor) for y in (weight, bias) if y is not None)
        and all(_is_dense(y) for y in (x, weight, bias) if y is not None)
        and weight.numel() >= sizes.numbers
        and weight.ndim == 2
        and x.ndim > 0
        and x.shape[-1] == weight.shape[1]
        and x.numel() <= sizes.rows * weight.shape[1]
        and torch._C._get_mkldnn_enabled()
    )


def _is_dense(x: torch.Tensor) -> bool:
    return x.dtype is torch.float32 and x.is_cpu and x.layout is torch.strided

"""Biases in kernel form that a call passes on, and their descriptions for other ranks."""

from __future__ import annotations

import hashlib
from typing import Any

from ntk_alibi import _arrays
from ntk_alibi.biases.base import BiasObject
from ntk_alibi.biases.kernel_bias import KernelBias


class KernelFormBias(BiasObject):
    """A bias that is in kernel form already.

    Args:
        form: the kernel form.
        num_heads: the number of heads.
    """

    form: KernelBias

    def __init__(self, form: KernelBias, num_heads: int) -> None:
        self.define(form=form, num_heads=num_heads, sides="symmetric")

    def kernel_bias(self, problem: Any, like: Any = None) -> KernelBias:
        """Return the form."""
        return self.form


def numbers_of(kernel: KernelBias) -> KernelBias:
    """Return the bias as NumPy numbers, without gradients."""
    return kernel.mapped(lambda _, x: _arrays.to_numpy(_arrays.detached(x)))


def detached(kernel: KernelBias) -> KernelBias:
    """Return the bias without gradients."""
    return kernel.mapped(lambda _, x: _arrays.detached(x))


def description(bias: Any, *, of_tokens: bool) -> str:
    """Describe a bias so that two ranks with other numbers have other descriptions.

    Numbers of single queries and of tokens belong to one rank.
    """
    if bias is None:
        return "None"
    digest = hashlib.sha256()
    if not hasattr(bias, "head_count"):
        if not _arrays.is_array(bias):
            return type(bias).__name__
        if of_all_queries(bias):
            _add(digest, bias)
        return f"dense numbers, {digest.hexdigest()[:12]}"
    own = of_tokens or bias.query_length is not None
    for numbers in () if own else bias.parameters:
        _add(digest, numbers)
    for name, value in sorted(vars(bias).items()):
        if not _arrays.is_array(value) and not name.startswith("_"):
            told = getattr(value, "__qualname__", None) if callable(value) else None
            digest.update(f"{name} {told or repr(value)}".encode())
    name, scaling = type(bias).__name__, getattr(bias, "scaling", None)
    numbers = digest.hexdigest()[:12]
    return f"{name} of {bias.head_count} heads, scaling {scaling}, numbers {numbers}"


def of_all_queries(dense: Any) -> bool:
    """Return whether dense numbers are the same for all queries, and so for those of all ranks."""
    return bool(dense.ndim < 2 or dense.shape[-2] == 1)


def _add(digest: Any, numbers: Any) -> None:
    array = _arrays.to_numpy(_arrays.detached(numbers))
    digest.update(f"{array.shape}".encode())
    digest.update(array.tobytes())

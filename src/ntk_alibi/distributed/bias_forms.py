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
        self._set(form=form, num_heads=num_heads, sides="symmetric")

    def kernel_bias(self, problem: Any, like: Any = None) -> KernelBias:
        """Return the form."""
        return self.form


def numbers_of(kernel: KernelBias) -> KernelBias:
    """Return the bias as NumPy numbers, without gradients."""
    return _mapped(kernel, lambda x: _arrays.to_numpy(_arrays.detached(x)))


def detached(kernel: KernelBias) -> KernelBias:
    """Return the bias without gradients."""
    return _mapped(kernel, _arrays.detached)


def _mapped(kernel: KernelBias, convert: Any) -> KernelBias:
    names = ("left", "right", "far_left", "far_right", "table", "sums", "first", "dense")
    held = {name: getattr(kernel, name) for name in names}
    return kernel._replace(**{n: convert(x) for n, x in held.items() if x is not None}, core=None)


def description(bias: Any, *, of_tokens: bool) -> str:
    """Describe a bias so that two ranks with other numbers have other descriptions.

    Numbers of single queries and of tokens belong to one rank.
    """
    if not hasattr(bias, "head_count"):
        return "None" if bias is None else "dense numbers"
    digest = hashlib.sha256(repr(bias.heads).encode())
    own = of_tokens or bias.query_length is not None
    for numbers in () if own else bias.parameters:
        digest.update(_arrays.to_numpy(_arrays.detached(numbers)).tobytes())
    name, scaling = type(bias).__name__, getattr(bias, "scaling", None)
    numbers = digest.hexdigest()[:12]
    return f"{name} of {bias.head_count} heads, scaling {scaling}, numbers {numbers}"

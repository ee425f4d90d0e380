"""LittleBird's bias for encoders: linear, with a separate constant for the first token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ntk_alibi.biases.base import BiasObject
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.biases.parameters import parameter, per_head
from ntk_alibi.biases.slopes import with_axes
from ntk_alibi.masks import Problem


@dataclass(frozen=True, eq=False)
class BiALiBi(BiasObject):
    """Linear biases for encoders, with a constant between the first token and all others.

    Formula::

        bias[h, i, j] = 0                  for i = j
                        -first_h           for i <= 0 or j = 0
                        -left_h (i - j)    for i > j
                        -right_h (j - i)   for i < j

    LittleBird learns all three parameters. The first token is the token at position 0.

    Args:
        first: (heads,) array or tensor; tensors may require grad.
        left: slopes for keys behind the query: (heads,), or a number for all heads.
        right: slopes for keys ahead of the query: (heads,), or a number for all heads.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is not finite, or has another number of heads.

    Example:
        >>> import ntk_alibi as na
        >>> na.BiALiBi([2.0], left=[0.5], right=[0.25]).tensor(3, 3)[0, 0]
        array([[ 0.  , -2.  , -2.  ],
               [-2.  ,  0.  , -0.25],
               [-2.  , -0.5 ,  0.  ]], dtype=float32)

    Source: Lee et al. 2022 (arXiv 2210.11870).
    """

    first: Any
    left: Any
    right: Any

    def __post_init__(self) -> None:
        first = per_head("first", self.first)
        heads = int(first.shape[0])
        left, right = (per_head(name, getattr(self, name), heads) for name in ("left", "right"))
        self.define(num_heads=heads, sides="two_slopes", first=first, left=left, right=right)

    def kernel_bias(self, problem: Problem, like: Any = None) -> KernelBias:
        """Return the slopes and the constant."""
        del problem
        first, left, right = (
            parameter(getattr(self, name), like) for name in ("first", "left", "right")
        )
        return KernelBias(with_axes(left), with_axes(right), exempt=1, first=first)

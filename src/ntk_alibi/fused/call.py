"""One call of attention: its arguments, checked once, in one object for all ways to attend."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from ntk_alibi import _arrays, _checks
from ntk_alibi.biases.kernel_bias import KernelBias, kernel_bias_of
from ntk_alibi.fused import checks
from ntk_alibi.masks import Mask, Problem
from ntk_alibi.positions import checks as position_checks
from ntk_alibi.positions.rotary import XPOS, RoPE


class Options(NamedTuple):
    """Keyword arguments of `attention`: a checked mask, and the others as the caller gave them.

    A tuple, since making a dataclass takes microseconds, which calls with few tokens would feel.
    """

    mask: Mask = Mask()
    key_padding_mask: Any = None
    query_positions: Any = None
    key_positions: Any = None
    align: str = "end"
    scale: float | None = None
    skip_tolerance: float | None = 0.0
    rotary: RoPE | XPOS | None = None
    log_n: int | None = None

    @classmethod
    def of(cls, **keywords: Any) -> Options:
        """Return the options of `attention`'s keywords, in which a mask has its own ones."""
        rule = {name: keywords.pop(name) for name in Mask._fields if name in keywords}
        return cls(Mask.checked(**rule), **keywords)


class AttentionCall(NamedTuple):
    """A checked call of attention.

    Attributes:
        query: (batch, heads, queries, head_dim), array or tensor.
        key: (batch, key heads, keys, head_dim).
        value: as key.
        bias: in kernel form, of NumPy numbers or of tensors that autograd follows.
        problem: shape, mask and positions.
        scale: of the dot products.
        skip_tolerance: as of `attention`.
        rotary: rotary embedding that is still to be applied, or None.
        log_n: training length of the log-n scaling that is still to be applied, or None.
    """

    query: Any
    key: Any
    value: Any
    bias: KernelBias
    problem: Problem
    scale: float
    skip_tolerance: float | None
    rotary: RoPE | XPOS | None = None
    log_n: int | None = None

    @staticmethod
    def checked(
        query: Any, key: Any, value: Any, bias: Any, options: Options, like: Any = None
    ) -> AttentionCall:
        """Return the call of inputs whose shapes are checked.

        Args:
            query: as of `attention`, as are key, value and bias.
            key: the keys.
            value: the values.
            bias: the bias.
            options: the keyword arguments.
            like: a tensor if the bias is to be tensors, else None.
        """
        mask, padding, query_positions, key_positions, align = options[:5]
        head_dim = query.shape[3]
        scale, tolerance = _numbers(options.scale, options.skip_tolerance, head_dim)
        if options.rotary is not None:
            checks.rotary(options.rotary, head_dim, causal=mask.causal)
        if options.log_n is not None:
            position_checks.train_length("log_n", options.log_n)
        shape = (*query.shape[:3], key.shape[2])
        if align == "end" and padding is query_positions is key_positions is None:
            problem = Problem(shape, mask)
        else:
            problem = Problem.checked(
                shape, mask, padding, query_positions, key_positions, align, like
            )
        return AttentionCall(
            query, key, value, kernel_bias_of(bias, problem, like), problem, scale, tolerance,
            options.rotary, options.log_n,
        )  # fmt: skip

    @property
    def rotates(self) -> bool:
        """Whether queries and keys are to be rotated or scaled first."""
        return self.rotary is not None or self.log_n is not None

    def part(self, queries: slice, keys: slice) -> AttentionCall:
        """Return the call of some queries and some keys."""
        return self._replace(
            query=self.query[:, :, queries],
            key=self.key[:, :, keys],
            value=self.value[:, :, keys],
            bias=self.bias.part(queries, keys, self.problem),
            problem=self.problem.part(queries, keys),
        )


def _numbers(scale: Any, tolerance: Any, head_dim: int) -> tuple[float, float | None]:
    if _arrays.is_tracing():  # which cannot look up what was checked before
        return _checked_numbers(scale, tolerance, head_dim)
    try:
        return _known_numbers(scale, tolerance, head_dim)
    except TypeError:  # a wrong type, or one that has no hash
        return _checked_numbers(scale, tolerance, head_dim)


def _checked_numbers(scale: Any, tolerance: Any, head_dim: int) -> tuple[float, float | None]:
    scale = 1.0 / math.sqrt(head_dim) if scale is None else scale
    return _checks.finite("scale", scale, minimum=-math.inf), checks.skip_tolerance(tolerance)


#: Most calls have the numbers of a call before.
_known_numbers = functools.lru_cache(maxsize=64, typed=True)(_checked_numbers)

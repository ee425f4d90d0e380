"""ALiBi: biases that are linear in distance."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np

from ntk_alibi import _checks
from ntk_alibi._backends import backend_of
from ntk_alibi._torch_state import is_tracing
from ntk_alibi.biases.base import BiasObject
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.biases.parameters import parameter
from ntk_alibi.biases.scaled_bias import bias_for_counts, token_counts
from ntk_alibi.biases.slopes import (
    SIDES,
    ModelSlopes,
    Sides,
    checked_slopes,
    hidden_sides,
    with_axes,
)
from ntk_alibi.masks import Problem
from ntk_alibi.methods import as_scaling
from ntk_alibi.scaling import AnyScaling, Scaling, is_constant


@dataclass(frozen=True, eq=False, repr=False)
class ALiBi(BiasObject):
    """Attention with linear biases: scores fall in proportion to the distance of a key.

    Formula::

        bias[b, h, i, j] = -m_h |i - j|

    Keys behind the query are its left side, keys ahead of it its right side:

    - `sides="causal"`: the left side only; -inf for keys ahead.
    - `sides="symmetric"`: the same slope on both sides.
    - `sides="halves"`: the first ceil(H/2) heads see the query itself and its left side, the other
      floor(H/2) heads the query itself and its right side. Each half has ALiBi's slopes for its
      number of heads.
    - `sides="two_slopes"`: separate left and right slopes, passed as a pair.

    Args:
        num_heads: H >= 1.
        scaling: a scaling of the standard slopes, its dict, the name of a method such as "ntk:4",
            or None. With `slopes` it must be None.
        slopes: slopes instead of the standard ones: a floating array or tensor of shape (heads,),
            (batch, heads) or (batch, heads, queries), or for "two_slopes" a pair (left, right).
            Learned slopes are usually sigmoid(x) of a parameter x ~ N(-2, 1). +inf hides a head's
            side.
        sides: "causal", "symmetric", "halves" or "two_slopes", see above.
        exempt: tokens at positions below this have no bias, as queries and as keys; 1 for a CLS
            token in front. Keys that a side or a mask hides stay hidden.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, or two arguments contradict each other.

    Example:
        >>> import ntk_alibi as na
        >>> na.ALiBi(8, na.NTK(4.0))
        ALiBi(num_heads=8, scaling=NTK(factor=4.0), sides='causal')
        >>> na.ALiBi(2, sides="symmetric").tensor(2, 3)[0, 0]
        array([[-0.0625,  0.    , -0.0625],
               [-0.125 , -0.0625,  0.    ]], dtype=float32)

    Source: Press et al. 2022 (arXiv 2108.12409); issue 5 of its repository for the encoder forms.
    """

    num_heads: int
    scaling: AnyScaling | None = None
    slopes: Any = field(default=None, kw_only=True)
    sides: Sides = field(default="causal", kw_only=True)
    exempt: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        heads = _checks.num_heads(self.num_heads)
        scaling = as_scaling(self.scaling)
        _checks.choice("sides", self.sides, SIDES)
        slopes = self.slopes
        if self.sides == "two_slopes":
            if not isinstance(slopes, tuple) or len(slopes) != 2:
                raise ValueError(
                    "slopes must be a pair (left, right) for sides='two_slopes', "
                    f"got {_checks.briefly(slopes)}"
                )
        elif isinstance(slopes, tuple):
            raise ValueError(
                f"slopes must be one array or list for sides={self.sides!r}, got a tuple: a pair "
                "(left, right) needs sides='two_slopes'"
            )
        if slopes is not None and scaling is not None:
            raise ValueError(
                "scaling must be None when slopes are given: a scaling stretches standard slopes "
                "only"
            )
        if self.sides == "two_slopes":
            names = "slopes (left)", "slopes (right)"
            slopes = tuple(checked_slopes(n, x, heads) for n, x in zip(names, slopes, strict=True))
        elif slopes is not None:
            slopes = checked_slopes("slopes", slopes, heads)
        exempt = _checks.integer("exempt", self.exempt, minimum=0)
        constant = None
        own = type(self).kernel_bias is not ALiBi.kernel_bias
        if slopes is None and is_constant(scaling) and not own:
            constant = ConstantSlopes(
                ModelSlopes(heads), scaling, self.sides, exempt, type(scaling)
            )
        self.define(
            num_heads=heads, scaling=scaling, slopes=slopes, exempt=exempt, constant=constant
        )

    def __repr__(self) -> str:
        slopes = "" if self.slopes is None else f", slopes={self.slopes!r}"
        exempt = f", exempt={self.exempt}" if self.exempt else ""
        scaling = f"scaling={self.scaling!r}"
        parts = f"{scaling}{slopes}, sides={self.sides!r}{exempt}"
        return f"ALiBi(num_heads={self.num_heads}, {parts})"

    @property
    def parameters(self) -> tuple[Any, ...]:
        """The left and right slopes from the argument `slopes`; empty for standard slopes."""
        if self.slopes is None:
            return ()
        return self.slopes if isinstance(self.slopes, tuple) else (self.slopes, self.slopes)

    @property
    def query_length(self) -> int | None:
        """The number of queries that the slopes are for; None for any number."""
        lengths = (side.shape[2] for side in self.parameters if np.ndim(side) == 3)
        return max(lengths, default=None)

    @property
    def rows(self) -> int:
        """The number of batch rows that the slopes are for."""
        return max((len(side) for side in self.parameters if np.ndim(side) > 1), default=1)

    def kernel_bias(self, problem: Problem, like: Any = None) -> KernelBias:
        """Return the slopes for a problem; a dynamic scaling depends on its real tokens."""
        scaling: Any = self.scaling
        if self.slopes is None:
            if like is None or not is_tracing():
                rule = _standard_rule(self.num_heads)
                return bias_from_rule(rule, scaling, self.sides, problem, self.exempt)
            from ntk_alibi.biases.traced_alibi import traced_alibi

            bias = traced_alibi(like, problem, self.num_heads, scaling, self.sides)
            return bias._replace(exempt=self.exempt)
        return KernelBias(*self._given_slopes(like), exempt=self.exempt)

    def _given_slopes(self, like: Any) -> tuple[Any, Any]:
        left, right = (with_axes(parameter(x, like, name="slopes")) for x in self.parameters)
        backend = backend_of(left)
        hidden = backend.convert(hidden_sides(self.sides, self.num_heads))
        where = backend.xp.where
        left, right = (where(h, np.inf, x) for h, x in zip(hidden, (left, right), strict=True))
        return left, right


ModelSides: TypeAlias = Literal["causal", "symmetric", "falling"]


@dataclass(frozen=True, eq=False)
class ModelALiBi(BiasObject):
    """The ALiBi of a model's layers: the slopes of its family, stretched by a scaling.

    Args:
        rule: how the family computes slopes, for all heads of the model.
        scaling: the scaling, or None.
        sides: "causal", "symmetric" for encoders, or "falling" for a decoder whose mask shows keys
            ahead: its bias is -slope d there, too, as a bias that depends on keys alone has it.
    """

    rule: ModelSlopes
    scaling: Scaling | None = None
    sides: ModelSides = field(default="causal", kw_only=True)

    def __post_init__(self) -> None:
        self.define(num_heads=self.rule.heads)

    @property
    def fixed(self) -> bool:
        """Whether the kernel form is the same for all problems."""
        return is_constant(self.scaling)

    @classmethod
    def of_model(
        cls, rule: ModelSlopes, scaling: Scaling | None, sides: ModelSides = "causal"
    ) -> ModelALiBi:
        """Return the bias of a model's layers, kept for models with the same scaling."""
        try:
            return _model_alibi(rule, cast(Any, scaling), sides)
        except TypeError:  # the scaling has no hash
            return cls(rule, scaling, sides=sides)

    def kernel_bias(self, problem: Problem, like: Any = None) -> KernelBias:
        """Return the slopes for a problem; a dynamic scaling depends on its real tokens."""
        del like
        if self.sides != "falling":
            return bias_from_rule(self.rule, self.scaling, self.sides, problem)
        both = bias_from_rule(self.rule, self.scaling, "symmetric", problem)
        return both._replace(right=-both.left)


class ConstantSlopes(NamedTuple):
    """Slopes that are the same for all problems: what `_static_bias` takes, and a class.

    Scalings of different classes may be equal: named tuples with the same values are.
    """

    rule: ModelSlopes
    scaling: Scaling | None
    sides: Sides
    exempt: int
    kind: type

    def kernel_bias(self) -> KernelBias:
        """Return their kernel form, which is kept."""
        return _static_bias(*cast(Any, self[:-1]))


_standard_rule = functools.lru_cache(maxsize=64)(ModelSlopes)


@functools.lru_cache(maxsize=256, typed=True)
def _model_alibi(rule: ModelSlopes, scaling: Scaling | None, sides: ModelSides) -> ModelALiBi:
    return ModelALiBi(rule, scaling, sides=sides)


def bias_from_rule(
    rule: ModelSlopes, scaling: Scaling | None, sides: Sides, problem: Problem, exempt: int = 0
) -> KernelBias:
    """Return the bias from a family's slopes; kept if it does not depend on lengths."""
    if is_constant(scaling):
        try:
            return _static_bias(rule, cast(Any, scaling), sides, exempt)
        except TypeError:  # the scaling has no hash
            pass
    return bias_for_counts(rule, scaling, sides, token_counts(scaling, problem), exempt)


@functools.lru_cache(maxsize=64, typed=True)
def _static_bias(
    rule: ModelSlopes, scaling: Scaling | None, sides: Sides, exempt: int
) -> KernelBias:
    """Return the bias of a static scaling.

    It is kept because making it takes longer than attention over few tokens.
    """
    bias = bias_for_counts(rule, scaling, sides, None, exempt)
    for side in bias.slopes.values():
        side.flags.writeable = False
    return bias.with_core()

"""Scalings flatten ALiBi's slopes, so that a model can use texts beyond its training length.

A scaling changes the exponents e_h of the slopes m_h = 2^-e_h by a factor a >= 1 and weights t_h:

    e'_h = e_h + t_h log2(a)

Position interpolation has t_h = 1, NTK-ALiBi t_h = (e_h - e_min) / (e_max - e_min). For powers of
two, NTK-ALiBi's weights are the published (h - 1)/(H - 1). For other head counts they continue that
formula: the steepest slope is unchanged, the flattest is divided by a, and the order of the heads
is kept. Dynamic scalings compute a, one for each text, from its number of tokens.

Any object with the method of `Scaling` is a scaling.
"""

from ntk_alibi.scaling.base import (
    OPTIONAL,
    AnyScaling,
    Floats,
    Scaling,
    checked_scaling,
    is_constant,
    is_dynamic,
    trained_at,
)
from ntk_alibi.scaling.config import (
    DYNAMIC_TYPES,
    STATIC_TYPES,
    scaling_from_config,
    scaling_to_config,
)
from ntk_alibi.scaling.dynamic import DynamicFlatHeads, DynamicInterpolation, DynamicNTK
from ntk_alibi.scaling.static import NTK, FlatHeads, Interpolation, MaxBias

__all__ = [
    "DYNAMIC_TYPES",
    "NTK",
    "OPTIONAL",
    "STATIC_TYPES",
    "AnyScaling",
    "DynamicFlatHeads",
    "DynamicInterpolation",
    "DynamicNTK",
    "FlatHeads",
    "Floats",
    "Interpolation",
    "MaxBias",
    "Scaling",
    "checked_scaling",
    "is_constant",
    "is_dynamic",
    "scaling_from_config",
    "scaling_to_config",
    "trained_at",
]

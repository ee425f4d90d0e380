"""Scalings: rules that flatten ALiBi's slopes, so that a model sees beyond its training length.

A scaling works on the exponents e_h of the slopes m_h = 2^-e_h. With a factor a >= 1 and weights
t_h,

    e'_h = e_h + t_h log2(a)

t_h = 1 is position interpolation; t_h = (e_h - e_min) / (e_max - e_min) is NTK-ALiBi. For head
counts that are powers of two, NTK-ALiBi's weights are the published (h - 1)/(H - 1). For other head
counts they continue that rule: the steepest slope is unchanged, the flattest is divided by a, and
the order of the heads is kept. Dynamic scalings compute a from the number of tokens.

Any object with the method of `Scaling` is a scaling. `Knee` and `DynamicKnee` scale distances
instead of slopes.
"""

from ntk_alibi.scaling.base import (
    OPTIONAL,
    Floats,
    Per,
    Scaling,
    at_layer,
    check_one_layer,
    checked_scaling,
    scaling_per,
    trained_at,
)
from ntk_alibi.scaling.config import DYNAMIC_TYPES, STATIC_TYPES, config_of, scaling_from_config
from ntk_alibi.scaling.dynamic import DynamicFlatHeads, DynamicInterpolation, DynamicNTK
from ntk_alibi.scaling.knee import Bend, DynamicKnee, Knee, without_knee
from ntk_alibi.scaling.static import NTK, FlatHeads, Interpolation, MaxBias

__all__ = [
    "DYNAMIC_TYPES",
    "NTK",
    "OPTIONAL",
    "STATIC_TYPES",
    "Bend",
    "DynamicFlatHeads",
    "DynamicInterpolation",
    "DynamicKnee",
    "DynamicNTK",
    "FlatHeads",
    "Floats",
    "Interpolation",
    "Knee",
    "MaxBias",
    "Per",
    "Scaling",
    "at_layer",
    "check_one_layer",
    "checked_scaling",
    "config_of",
    "scaling_from_config",
    "scaling_per",
    "trained_at",
    "without_knee",
]

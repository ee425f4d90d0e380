"""Scalings as plain dicts, in the manner of transformers' rope parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from ntk_alibi import _checks
from ntk_alibi.scaling.base import LENGTH_KEY, Scaling
from ntk_alibi.scaling.dynamic import DynamicFlatHeads, DynamicInterpolation, DynamicNTK
from ntk_alibi.scaling.knee import Knee
from ntk_alibi.scaling.static import NTK, FlatHeads, Interpolation, MaxBias

#: Scalings that depend on no lengths, by their `alibi_type`.
STATIC_TYPES: dict[str, Any] = {
    scaling.alibi_type: scaling for scaling in (Interpolation, NTK, FlatHeads, MaxBias, Knee)
}
_DYNAMIC_TYPES: dict[str, Any] = {
    scaling.alibi_type: scaling for scaling in (DynamicNTK, DynamicInterpolation, DynamicFlatHeads)
}

#: The keys of a config dict that are parameters of a scaling by the same name.
_NAMED_KEYS = ("share", "per")


def scaling_from_config(config: Mapping[str, Any]) -> Scaling | None:
    """Return the scaling that a plain dict describes, similar to transformers' rope parameters.

    Args:
        config: the key `alibi_type` and the keys of its type. "default" has none and means no
            scaling; "linear", "ntk", "flat_heads" and "max_bias" need `factor`; "knee" needs
            `start` and `factor`; "dynamic", "dynamic_linear" and "dynamic_flat_heads" need `factor`
            (the rate a0) and `original_max_position_embeddings` (the training length), and take
            `per`; those of flat heads take `share`. What is left out has the default of the
            scaling.

    Returns:
        A scaling, or None for "default". `to_config` of a scaling is the inverse.

    Raises:
        TypeError: config is not a mapping, or a value has the wrong type.
        ValueError: a key is missing or unknown, or a value is out of range.

    Example:
        >>> import ntk_alibi as na
        >>> na.scaling_from_config({"alibi_type": "ntk", "factor": 4.0})
        NTK(factor=4.0)
    """
    types = ("default", *STATIC_TYPES, *_DYNAMIC_TYPES)
    _checks.keys("config", config, required=["alibi_type"], optional=config)
    alibi_type = _checks.choice("alibi_type", config["alibi_type"], types)
    required, optional = ["alibi_type"], []
    if alibi_type != "default":
        kind = STATIC_TYPES.get(alibi_type) or _DYNAMIC_TYPES[alibi_type]
        if alibi_type in _DYNAMIC_TYPES:
            required += ["factor", LENGTH_KEY]
        else:
            required += [field.name for field in fields(kind) if field.default is MISSING]
        optional = [field.name for field in fields(kind) if field.name in _NAMED_KEYS]
    _checks.keys("config", config, required=required, optional=optional)
    if alibi_type == "default":
        return None
    scaling: Scaling = kind(
        *(config[key] for key in required[1:]), **{k: config[k] for k in optional if k in config}
    )
    return scaling

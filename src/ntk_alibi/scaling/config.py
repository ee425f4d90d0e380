"""Scalings as dicts for config files, similar to transformers' rope parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import ModuleType
from typing import Any

from ntk_alibi import _checks, _names
from ntk_alibi.scaling import dynamic, static
from ntk_alibi.scaling.base import CONFIG_KEYS, OPTIONAL, Scaling
from ntk_alibi.scaling.dynamic import DynamicInterpolation
from ntk_alibi.scaling.static import Interpolation


def _defined_in(module: ModuleType) -> list[Any]:
    """Return the scalings that a module defines, in the module's order."""
    classes = [x for x in vars(module).values() if getattr(x, "__module__", "") == module.__name__]
    return [x for x in classes if hasattr(x, "alibi_type")]


#: Scalings with a constant factor, by `alibi_type`.
STATIC_TYPES: dict[str, Any] = {x.alibi_type: x for x in _defined_in(static)}

#: Scalings whose factor grows with the text, by `alibi_type`.
DYNAMIC_TYPES: dict[str, Any] = {x.alibi_type: x for x in _defined_in(dynamic)}

#: The `alibi_type` for no scaling.
DEFAULT = "default"


def scaling_to_config(scaling: Any) -> dict[str, Any]:
    """Return the config dict of a scaling with `to_config`, or of None."""
    config: dict[str, Any] = {"alibi_type": DEFAULT} if scaling is None else scaling.to_config()
    return config


def scaling_from_config(config: Mapping[str, Any]) -> Scaling | None:
    """Make a scaling from a config dict, similar to transformers' rope parameters.

    The key `alibi_type` names the scaling, the other keys are its parameters:

    - "default": no scaling, no other keys.
    - "linear" (`Interpolation`), "ntk", "flat_heads", "max_bias": `factor`.
    - "dynamic" (`DynamicNTK`), "dynamic_linear", "dynamic_flat_heads": `factor`, which is the
      rate; optional `original_max_position_embeddings`, which is the training length.

    Configs of BTLM and JAIS are read, too: `type` "linear" with either `factor` (`Interpolation`)
    or `train_seq_len` (`DynamicInterpolation` with rate 1).

    Args:
        config: a dict as above.

    Returns:
        A scaling, or None for "default". A scaling's `to_config` is the inverse.

    Raises:
        TypeError: config is not a mapping, or a value has the wrong type.
        ValueError: a key is missing or unknown, or a value is out of range.

    Example:
        >>> import ntk_alibi as na
        >>> na.scaling_from_config({"alibi_type": "ntk", "factor": 4.0})
        NTK(factor=4.0)
    """
    types = (DEFAULT, *STATIC_TYPES, *DYNAMIC_TYPES)
    if isinstance(config, Mapping) and "type" in config:
        return _from_btlm(config)
    if isinstance(config, Mapping) and "alibi_type" not in config:
        raise ValueError(
            'config must have the keys of {"alibi_type": "ntk", "factor": 4.0}, or of another '
            f"type; 'alibi_type' is missing in {_checks.briefly(config)}"
        )
    _checks.keys("config", config, required=["alibi_type"], optional=config)
    advice = _names.did_you_mean(str(config["alibi_type"]), types)
    alibi_type = _checks.choice("alibi_type", config["alibi_type"], types, advice)
    if alibi_type == DEFAULT:
        _checks.keys("config", config, required=["alibi_type"])
        return None
    scaling_type = STATIC_TYPES.get(alibi_type) or DYNAMIC_TYPES[alibi_type]
    keys = {CONFIG_KEYS.get(field.name, field.name): field.name for field in fields(scaling_type)}
    optional = [key for key, name in keys.items() if name in OPTIONAL]
    required = ["alibi_type", *(key for key in keys if key not in optional)]
    _checks.keys("config", config, required=required, optional=optional)
    given = {name: config[key] for key, name in keys.items() if key in config}
    scaling: Scaling = scaling_type(**given)
    return scaling


def _from_btlm(config: Mapping[str, Any]) -> Scaling:
    """Make the scaling from `alibi_scaling` in a config of BTLM or JAIS.

    These models divide all slopes by the factor, or by keys / train_seq_len beyond train_seq_len.
    """
    given = {key: value for key, value in config.items() if value is not None}
    if "alibi_type" in given:
        raise ValueError(
            "config must have alibi_type, as ntk_alibi has it, or type, as BTLM and JAIS have it, "
            f"got both: {_checks.briefly(config)}"
        )
    if len(given) != 2:
        raise ValueError(
            "config must have one of factor and train_seq_len besides type, as BTLM and JAIS have "
            f"it, got {_checks.briefly(config)}"
        )
    _checks.keys("config", given, required=["type"], optional=["factor", "train_seq_len"])
    if given["type"] != "linear":
        raise ValueError(
            f"type must be one of 'linear', got {_checks.briefly(given['type'])}: type is what "
            "BTLM and JAIS have, and alibi_type has all other scalings"
        )
    if "factor" in given:
        return Interpolation(given["factor"])
    return DynamicInterpolation(1.0, given["train_seq_len"])

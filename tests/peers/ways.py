"""A plugin of pytest that patches every BLOOM, MPT and Falcon that transformers' tests make.

The environment variable NTK_ALIBI_PEERS_WAY says how; `python -m peers` sets it.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest
import transformers
from transformers import FalconConfig, PreTrainedModel

import ntk_alibi as na
from ntk_alibi.integrations import known

#: The ways: transformers' own code, `patch`, and our attn_implementation.
WAYS = STOCK, FUSED, CONFIGURED = "stock", "fused", "configured"

#: The environment variable with the way of a run.
VARIABLE = "NTK_ALIBI_PEERS_WAY"


def pytest_configure(config: pytest.Config) -> None:
    """Make the models of this run patched ones."""
    way = os.environ[VARIABLE]
    _after(FalconConfig, _with_alibi)
    if way == CONFIGURED:
        _before(PreTrainedModel, _with_our_name)
    elif way == FUSED:
        for family in known.DECODERS:
            _after(transformers_class(family), _patch)


def transformers_class(family: Any) -> Any:
    """Return the class of a family's models."""
    return getattr(transformers, family.code.model)


def _with_alibi(config: Any, given: dict[str, Any]) -> None:
    """Give a Falcon ALiBi unless its test says otherwise: its tests are of rotary models."""
    config.alibi = given.get("alibi", True)


def _with_our_name(model: Any, config: Any) -> None:
    """Choose our attention for a model with ALiBi whose test chose none."""
    bases: Any = tuple(transformers_class(family).__base__ for family in known.DECODERS)
    chosen = config._attn_implementation is not None
    if isinstance(model, bases) and getattr(config, "alibi", True) and not chosen:
        config._attn_implementation = "ntk_alibi"


def _patch(model: Any, _: dict[str, Any]) -> None:
    """Patch a model with ALiBi that was just made."""
    if getattr(model.config, "alibi", True):
        na.patch(model)


def _before(changed: Any, action: Any) -> None:
    made = changed.__init__

    @functools.wraps(made)
    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        action(self, config)
        made(self, config, *args, **kwargs)

    changed.__init__ = __init__


def _after(changed: Any, action: Any) -> None:
    made = changed.__init__

    @functools.wraps(made)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        made(self, *args, **kwargs)
        action(self, kwargs)

    changed.__init__ = __init__

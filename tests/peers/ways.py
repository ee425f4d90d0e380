"""A plugin of pytest that patches every model of a patch's families that transformers' tests make.

The environment variable NTK_ALIBI_PEERS_WAY says how; `python -m peers` sets it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import pytest
from transformers import FalconConfig, PreTrainedModel

import ntk_alibi as na
from ntk_alibi.integrations.families import transformers_families

#: The ways: transformers' own code, `patch`, and our attn_implementation.
WAYS = STOCK, FUSED, CONFIGURED = "stock", "fused", "configured"

#: The environment variable with the way of a run.
VARIABLE = "NTK_ALIBI_PEERS_WAY"

FAMILIES = transformers_families()


def pytest_configure(config: pytest.Config) -> None:
    """Make the models of this run patched ones."""
    way = os.environ[VARIABLE]
    _wrap(FalconConfig, "__init__", after=_give_alibi)
    if way == CONFIGURED:
        _wrap(PreTrainedModel, "__init__", before=_give_our_name)
    elif way == FUSED:
        _wrap(PreTrainedModel, "post_init", after=_patch)


def _give_alibi(config: Any, **given: Any) -> None:
    """Give a Falcon ALiBi unless its test says otherwise: its tests are of rotary models."""
    config.alibi = given.get("alibi", True)


def _has_bias(config: Any) -> bool:
    """Return whether models of a configuration have a bias: Falcons may be rotary."""
    return bool(getattr(config, "alibi", True))


def _give_our_name(_: Any, config: Any, *__: Any, **___: Any) -> None:
    """Choose our attention for a configuration of a family whose test chose none."""
    ours = isinstance(config, tuple(family.config_class() for family in FAMILIES))
    if ours and _has_bias(config) and config._attn_implementation is None:
        config._attn_implementation = "ntk_alibi"


def _patch(model: Any) -> None:
    """Patch a model that was just made."""
    if any(family.matches(model) for family in FAMILIES) and _has_bias(model.config):
        na.patch(model)


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def _wrap(
    owner: Any, name: str, *, before: Callable[..., None] = _nothing, after: Any = _nothing
) -> None:
    """Let a method of a class do something more, with the same arguments."""
    stock = getattr(owner, name)

    @functools.wraps(stock)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        before(self, *args, **kwargs)
        stock(self, *args, **kwargs)
        after(self, *args, **kwargs)

    setattr(owner, name, wrapped)

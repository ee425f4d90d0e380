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

#: The ways: transformers' own code, and `patch`.
WAYS = STOCK, PATCHED = "stock", "patched"

#: The environment variable with the way of a run.
VARIABLE = "NTK_ALIBI_PEERS_WAY"

FAMILIES = transformers_families()


def pytest_configure(config: pytest.Config) -> None:
    """Make the models of this run patched ones."""
    _wrap(FalconConfig, "__init__", _give_alibi)
    if os.environ[VARIABLE] == PATCHED:
        _wrap(PreTrainedModel, "post_init", _patch)


def _give_alibi(config: Any, **given: Any) -> None:
    """Give a Falcon ALiBi unless its test says otherwise: its tests are of rotary models."""
    config.alibi = given.get("alibi", True)


def _patch(model: Any) -> None:
    """Patch a model that was just made; Falcons may be rotary."""
    if any(family.matches(model) for family in FAMILIES) and getattr(model.config, "alibi", True):
        na.patch(model)


def _wrap(owner: Any, name: str, after: Callable[..., None]) -> None:
    """Let a method of a class do something more at its end, with the same arguments."""
    stock = getattr(owner, name)

    @functools.wraps(stock)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        after(self, *args, **kwargs)

    setattr(owner, name, wrapped)

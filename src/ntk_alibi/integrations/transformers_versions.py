"""transformers' versions and classes, asked without importing transformers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from typing import Any

from packaging.version import Version
from torch import nn

from ntk_alibi import _installed
from ntk_alibi.integrations.classes import stock, stock_class

#: The oldest version of transformers that the patches of its models work with, and the first one
#: that they were not tested with; tests/integrations/test_versions.py lists the ones tested.
TRANSFORMERS_VERSIONS = (Version("5.4"), Version("5.25"))


def transformers_version() -> str | None:
    """Return the installed version, or None without transformers."""
    if (loaded := sys.modules.get("transformers")) is not None:
        return str(loaded.__version__)
    return _installed.version_of("transformers")


def version_is_tested() -> bool:
    """Return whether the patches were tested with what is installed, no dev version."""
    installed, (low, high) = Version(transformers_version() or "0"), TRANSFORMERS_VERSIONS
    return low <= installed < high and not installed.is_devrelease


def check_version() -> None:
    """Raise for versions of transformers that are too old for the patches."""
    installed = transformers_version()
    if installed is None or Version(installed) < TRANSFORMERS_VERSIONS[0]:
        raise RuntimeError(
            f"transformers must be >= {TRANSFORMERS_VERSIONS[0]} for ntk_alibi's patches, got "
            f"{installed}: in older versions a patch may silently do nothing"
        )


def class_named(name: str, part: nn.Module) -> Any:
    """Return the class of transformers with a name that a module is of, or None."""
    for base in type(part).__mro__:
        if base.__name__ == name and base.__module__.startswith("transformers.models."):
            return stock(base)
    return None


def check_forward(part: nn.Module, known: Any, name: str) -> None:
    """Check that a module has the forward of a class of transformers; None means no class."""
    if known is None or stock_class(part).forward is not known.forward:
        raise ValueError(
            f"model must have the forward method of transformers' {name}, got a "
            f"{type(part).__name__} with another forward"
        )


def check_parameters(family: str, function: Any, names: Iterable[str]) -> None:
    """Check that a function of transformers has the parameters that a family's patch expects."""
    if missing := set(names) - set(inspect.signature(function).parameters):
        raise RuntimeError(
            f"transformers {transformers_version()} is not what the {family} patch expects: "
            f"{function.__qualname__} has no {', '.join(sorted(missing))}"
        )

"""Packages that are optional, and the extras that bring them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

#: The extra that brings a package.
EXTRAS = {
    "torch": "torch",
    "transformers": "transformers",
    "matplotlib": "plot",
    "bokeh": "explore",
    "vllm": "vllm",
    "ntk_alibi_models": "models",
    **dict.fromkeys(("fuzzywuzzy", "jieba", "rouge"), "longbench"),
    **dict.fromkeys(("nltk", "wonderwords"), "ruler"),
}


@contextmanager
def needed_by(name: str) -> Iterator[None]:
    """Say, where an import in the block fails, which extra to install for `name`."""
    try:
        yield
    except ImportError as error:
        package = _missing(error)
        if package not in EXTRAS:
            raise
        message = f"{name} needs {package}: pip install 'ntk-alibi[{EXTRAS[package]}]'"
        raise ModuleNotFoundError(message, name=package) from error


def _missing(error: BaseException) -> str | None:
    """Return the package that was not found, also where another library gave advice of its own."""
    if isinstance(error, ModuleNotFoundError):
        return error.name
    return None if error.__cause__ is None else _missing(error.__cause__)

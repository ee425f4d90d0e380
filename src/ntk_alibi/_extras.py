"""Packages that are optional, and the extras that bring them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

#: The extra that brings a package.
EXTRAS = {"torch": "torch", "transformers": "transformers", "matplotlib": "plot", "vllm": "vllm"}


@contextmanager
def needed_by(name: str) -> Iterator[None]:
    """Say, where an import in the block fails, which extra to install for `name`."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        message = f"{name} needs {error.name}: pip install 'ntk-alibi[{EXTRAS[error.name]}]'"
        raise ModuleNotFoundError(message, name=error.name) from error

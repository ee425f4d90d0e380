"""Caches for patched models; here the kinds of them that layers tell apart."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any


class ReadAsHeld:
    """A cache whose keys the core reads as they are held, with their norms."""

    @abstractmethod
    def append(self, key_states: Any, value_states: Any, layer_idx: int) -> tuple[Any, Any]:
        """Append keys and values of a layer, and return all of them as they are held."""

    @abstractmethod
    def norms(self, layer_idx: int) -> Any:
        """Return the `KeyNorms` of the keys that a layer holds."""


class Bounded:
    """A cache that holds the sinks and the window of a patch, `shared`, and no other tokens."""

    shared: Any

    @abstractmethod
    def expect(self, tokens: int) -> None:
        """Note how many tokens all layers will have seen after a pass."""

"""Fixtures for tests of pictures."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def agg() -> Iterator[None]:
    """Draw without windows, and begin and end without open figures."""
    plt.switch_backend("agg")
    plt.close("all")
    yield
    plt.close("all")

"""Fixtures of the tests of pictures."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def agg() -> Iterator[None]:
    """No window is opened, and no figure is left."""
    plt.switch_backend("agg")
    yield
    plt.close("all")

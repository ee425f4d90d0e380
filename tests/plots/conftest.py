"""Fixtures for tests of pictures."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def agg() -> Iterator[None]:
    """Draw without windows, and close all figures after the test."""
    plt.switch_backend("agg")
    yield
    plt.close("all")

"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from ntk_alibi import _core

ROOT = Path(__file__).parents[1]

settings.register_profile("default", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("default")


@pytest.fixture(params=_core.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set of this machine in turn."""
    before = _core.active_isa()
    _core.select_isa(request.param)
    yield request.param
    _core.select_isa(before)


@pytest.fixture(scope="session")
def longeval() -> Path:
    """LongEval's published files, which are no part of this repository."""
    for folder in (ROOT / "shared/data/longeval", ROOT.parent / "shared/data/longeval"):
        if folder.is_dir():
            return folder
    pytest.skip("LongEval's files are not beside this checkout (../shared/data/longeval)")

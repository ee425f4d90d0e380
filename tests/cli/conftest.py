"""Fixtures for tests of commands."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a new folder, and return it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path

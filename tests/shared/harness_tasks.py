"""The harness without its own tasks, whose thousands of files take it seconds to search."""

from __future__ import annotations

from pathlib import Path

import lm_eval.tasks.manager
import pytest


def search_tasks_in(folder: Path, patched: pytest.MonkeyPatch) -> None:
    """Let the harness search a folder instead of its own tasks."""
    patched.setattr(lm_eval.tasks.manager, "__file__", str(folder / "manager.py"))

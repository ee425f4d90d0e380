"""Reports: tables for terminals and notebooks, and sections of Markdown documents."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ntk_alibi import _checks

if TYPE_CHECKING:
    from ntk_alibi.evaluation.report.tables import (
        comparison_tables,
        html,
        study_tables,
        tuning_table,
    )

__all__ = ["comparison_tables", "html", "study_tables", "tuning_table"]


def __getattr__(name: str) -> Any:
    """Load the tables on first use, since rich is optional."""
    if name in __all__:
        return getattr(import_module("ntk_alibi.evaluation.report.tables"), name)
    raise AttributeError(_checks.no_attribute(__name__, name, __all__))

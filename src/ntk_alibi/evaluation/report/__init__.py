"""Reports: tables for terminals and notebooks, and sections of Markdown documents."""

from ntk_alibi.evaluation.report.tables import (
    comparison_tables,
    html,
    study_tables,
    tuning_table,
)

__all__ = ["comparison_tables", "html", "study_tables", "tuning_table"]

"""Reports: tables for terminals and notebooks, sections of Markdown documents, and sentences."""

from ntk_alibi.evaluation.report.tables import html, study_tables

__all__ = ["html", "study_tables"]

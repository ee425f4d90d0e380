"""Reports: tables for terminals and notebooks, and sections of Markdown documents."""

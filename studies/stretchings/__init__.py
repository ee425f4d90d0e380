"""Comparison of stretchings on models of other seeds and regimes: `-m studies.stretchings`."""

"""Comparison of stretchings on models of other seeds and regimes: `-m ntk_alibi.replication`."""

"""The study of length extrapolation: `python -m ntk_alibi.extrapolation`."""

"""Training of the embedded model: `python -m ntk_alibi.training`."""

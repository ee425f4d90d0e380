"""Our tasks and our model for lm-evaluation-harness, and functions that run the harness."""

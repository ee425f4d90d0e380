"""Tasks, models and runs of lm-evaluation-harness."""

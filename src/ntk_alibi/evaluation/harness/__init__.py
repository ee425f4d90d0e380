"""Our model and LongEval's files for lm-evaluation-harness."""

"""Evaluation at long contexts: retrieval, perplexity by position, LongEval and LongBench files."""

from ntk_alibi.evaluation.scoring import score_lines, score_topics

__all__ = ["score_lines", "score_topics"]

"""Evaluation on long texts: retrieval, perplexity by position, LongEval and LongBench files."""

from ntk_alibi.evaluation.comparing.length_study import evaluate
from ntk_alibi.evaluation.comparing.plan import Plan
from ntk_alibi.evaluation.scoring import score_lines, score_topics
from ntk_alibi.methods import parse_method

__all__ = ["Plan", "evaluate", "parse_method", "score_lines", "score_topics"]

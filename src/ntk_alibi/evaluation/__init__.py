"""Evaluation on long texts: retrieval, perplexity by position, files of LongEval."""

from ntk_alibi.evaluation.comparing.length_study import evaluate
from ntk_alibi.evaluation.comparing.plan import Plan
from ntk_alibi.evaluation.comparing.summary import Summary, read_summary
from ntk_alibi.evaluation.scoring import score_lines, score_topics
from ntk_alibi.methods import parse_method

__all__ = [
    "Plan",
    "Summary",
    "evaluate",
    "parse_method",
    "read_summary",
    "score_lines",
    "score_topics",
]

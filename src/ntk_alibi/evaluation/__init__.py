"""Does a longer context work: retrieval tasks, perplexity by position, LongEval's own files."""

from ntk_alibi.evaluation.scoring import score_lines, score_topics

__all__ = ["score_lines", "score_topics"]

"""Evaluation at long contexts: retrieval, perplexity by position, LongEval and LongBench files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ntk_alibi import _checks
from ntk_alibi.evaluation.scoring import score_lines, score_topics

if TYPE_CHECKING:
    from ntk_alibi.evaluation.comparing.length_study import evaluate
    from ntk_alibi.evaluation.comparing.plan import Plan
    from ntk_alibi.methods import parse_method

__all__ = ["Plan", "evaluate", "parse_method", "score_lines", "score_topics"]

#: Names that are loaded on first use, by the module that defines them.
_LAZY = {
    "Plan": "ntk_alibi.evaluation.comparing.plan",
    "evaluate": "ntk_alibi.evaluation.comparing.length_study",
    "parse_method": "ntk_alibi.methods",
}


def __getattr__(name: str) -> Any:
    """Load on first use what scoring LongEval's files does not need."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(_checks.no_attribute(__name__, name, __all__))

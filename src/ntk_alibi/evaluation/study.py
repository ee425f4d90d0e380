"""Old path of the length study, which is `plan`, `length_study` and `summary` in comparing/ now."""

from ntk_alibi.evaluation.comparing.length_study import evaluate
from ntk_alibi.evaluation.comparing.plan import QUICK, Plan
from ntk_alibi.evaluation.comparing.summary import Summary, summarise

__all__ = ["QUICK", "Plan", "Summary", "evaluate", "summarise"]

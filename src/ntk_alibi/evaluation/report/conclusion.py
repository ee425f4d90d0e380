"""What a study shows, in one sentence that is computed from its results."""

from __future__ import annotations

from typing import Any

from ntk_alibi.evaluation.report.cells import with_ends


def best_method(summary: dict[str, Any]) -> str | None:
    """Return the method, besides the first, that answers most at the greatest length."""
    others = _farthest(summary)[1:]
    return max(others, key=lambda entry: entry["accuracy"])["method"] if others else None


def conclusion(summary: dict[str, Any]) -> list[str]:
    """Return the sentence about the first task at the greatest length; none for a single method.

    The best method counts as better if its 95 % interval lies above that of the first one.
    """
    best = best_method(summary)
    if best is None:
        return []
    first, *others = _farthest(summary)
    (entry,) = (entry for entry in others if entry["method"] == best)
    tokens = round(first["multiple"] * summary["train_length"])
    where = f"At {first['multiple']:g} training lengths ({tokens} tokens)"
    found = f"{first['method']} answers {percent(first)} of the questions about {first['task']}"
    if entry["low"] > first["high"]:
        count = f", the best of {len(others)} methods," if len(others) > 1 else ""
        return [f"{where} {found}; {best}{count} answers {percent(entry)}."]
    return [f"{where} {found}; no method is seen to do better: {best} answers {percent(entry)}."]


def _farthest(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the results of the first task at the greatest length, the first method's first."""
    entries = [e for e in summary["retrieval"] if e["accuracy"] is not None]
    if not entries:
        return []
    longest = max(e["multiple"] for e in entries if e["task"] == entries[0]["task"])
    at = [e for e in entries if (e["task"], e["multiple"]) == (entries[0]["task"], longest)]
    order = list(summary["methods"])
    at.sort(key=lambda entry: order.index(entry["method"]))
    return at if at[0]["method"] == order[0] else []


def percent(entry: dict[str, Any]) -> str:
    """Format the accuracy of an entry with its interval."""
    value, low, high = (100 * entry[key] for key in ("accuracy", "low", "high"))
    return str(with_ends(value, low, high, unit=" %"))

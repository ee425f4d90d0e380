"""What a study shows, as a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ntk_alibi.evaluation.report.cells import with_ends

if TYPE_CHECKING:
    from pandas import DataFrame


def best_method(summary: Any) -> str | None:
    """Return the method, besides the first, that answers most at the greatest length, or None."""
    others = _farthest(summary)[1:]
    return None if others.empty else str(others["accuracy"].idxmax())


def conclusion(summary: Any) -> list[str]:
    """Return a sentence about the first task at the greatest length; none for a single method.

    The best method counts as better if its 95 % interval is above the interval of the first one.
    """
    best = best_method(summary)
    if best is None:
        return []
    found = _farthest(summary)
    first, entry = found.iloc[0], found.loc[best]
    tokens = round(first["multiple"] * summary.train_length)
    begin = (
        f"At {first['multiple']:g} training lengths ({tokens} tokens) {first.name} answers "
        f"{percent(first)} of the questions about {first['task']}"
    )
    if entry["low"] > first["high"]:
        count = f", the best of {len(found) - 1} methods," if len(found) > 2 else ""
        return [f"{begin}; {best}{count} answers {percent(entry)}."]
    return [f"{begin}; no method is seen to do better: {best} answers {percent(entry)}."]


def _farthest(summary: Any) -> DataFrame:
    """Return the results of the first task at the greatest length by method, in their order.

    Without a result of the first method there are none.
    """
    cells = summary.retrieval.dropna(subset="accuracy")
    cells = cells[cells["task"] == cells["task"].head(1).squeeze()]
    cells = cells[cells["multiple"] == cells["multiple"].max()].set_index("method")
    methods = [name for name in summary.methods if name in cells.index]
    return cells.loc[methods if summary.methods[0] in methods else []]


def percent(entry: Mapping[str, Any]) -> str:
    """Return the accuracy of an entry with its interval, in %."""
    value, low, high = (100 * entry[key] for key in ("accuracy", "low", "high"))
    return with_ends(value, low, high, unit=" %")

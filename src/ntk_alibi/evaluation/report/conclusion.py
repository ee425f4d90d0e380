"""What a study shows, as a sentence; what to measure instead where it shows nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ntk_alibi import _files
from ntk_alibi.evaluation.report.cells import with_ends
from ntk_alibi.evaluation.report.markdown import counted
from ntk_alibi.methods import ORIGINAL, RECOMMENDED

if TYPE_CHECKING:
    from pandas import DataFrame

#: The accuracy up to which a model does not know a task: a lucky answer in twenty.
UNKNOWN = 0.05


def unanswered(summary: Any) -> str | None:
    """Return a clause that says that a model does not know the records; None if it knows some.

    It is about the first method at the training length, or the greatest length below it, if the
    study has one.
    """
    found = summary.retrieval.dropna(subset="accuracy")
    if found.empty or found["accuracy"].max() > UNKNOWN:
        return None
    within = found[(found["multiple"] <= 1) & (found["method"] == summary.methods[0])]
    if within.empty:
        lengths = " or ".join(f"{multiple:g}" for multiple in found["multiple"].unique())
        where = f"{lengths} training lengths"
    else:
        multiple = within["multiple"].max()
        found = within[within["multiple"] == multiple]
        where = f"{multiple:g} training lengths" if multiple < 1 else "its own training length"
        where += f" ({round(multiple * summary.train_length)} tokens)"
    share = 100 * (found["accuracy"] * found["cases"]).sum() / found["cases"].sum()
    return f"the model answers {share:.0f} % of the questions of these records at {where}"


def instead(model: str, train_length: int) -> list[str]:
    """Return lines that say what to measure with a model that does not know the records."""

    def command(*words: str) -> str:
        return f"    {_files.command_line(['ntk-alibi', *words])}"

    methods = ("--methods", ORIGINAL, RECOMMENDED)
    lengths = [str(train_length // part) for part in (4, 2)]
    harness = ("--model", "ntk_alibi", "--model_args", f"pretrained={model},method={ORIGINAL}")
    task = ("--tasks", "ntk_alibi_lines_generated", "--metadata", f"lengths=[{lengths[-1]}]")
    return [
        "measure instead:",
        "  the loss by position, which needs no task",
        command("eval", "--model", model, "--records", "0", *methods),
        "  shorter records, and a key hidden in prose",
        command(
            *("eval", "--model", model, "--lengths", *lengths),
            *("--passkey-records", "8", "--prose-windows", "0", "--methods", ORIGINAL),
        ),
        "  a model for chats, by its template; or any task of the harness that it knows",
        command("lm-eval", *harness, *task, "--apply_chat_template"),
    ]


def choice(summary: Any) -> str | None:
    """Return the method to use by a study: the best at the greatest length, besides the first.

    Where the interval of the recommended method reaches the best one's, it is the recommended one.
    None for a single method.
    """
    others = _farthest(summary)[1:]
    if others.empty:
        return None
    best = str(others["accuracy"].idxmax())
    is_level = RECOMMENDED in others.index and _overlap(others.loc[RECOMMENDED], others.loc[best])
    return RECOMMENDED if is_level else best


def is_better(summary: Any) -> bool:
    """Return whether a method is seen to do better than the first, beyond the 95 % intervals."""
    found = _farthest(summary)
    return bool((found["low"][1:] > found["high"].iloc[0]).any()) if len(found) > 1 else False


def conclusion(summary: Any) -> list[str]:
    """Return a sentence about the first task at the greatest length; none for a single method.

    A method counts as better than another if its 95 % interval is above the other's.
    """
    chosen = choice(summary)
    if chosen is None:
        return []
    found = _farthest(summary)
    first, entry = found.iloc[0], found.loc[chosen]
    tokens = round(first["multiple"] * summary.train_length)
    begin = (
        f"At {counted(first['multiple'], 'training length')} ({tokens} tokens) {first.name} "
        f"answers {percent(first)} of the questions about {first['task']}"
    )
    if not is_better(summary):
        return [f"{begin}; no method is seen to do better: {chosen} answers {percent(entry)}."]
    others = found[1:]
    best = others.loc[others["accuracy"].idxmax()]
    if best.name != chosen:
        level = f"; {best.name} answers {percent(best)}, no more beyond the intervals"
        return [f"{begin}; {chosen}, the recommended method, answers {percent(entry)}{level}."]
    count = f", the best of {len(others)} methods," if len(others) > 1 else ""
    return [f"{begin}; {chosen}{count} answers {percent(entry)}."]


def _overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(one["high"] >= other["low"] and other["high"] >= one["low"])


def _farthest(summary: Any) -> DataFrame:
    """Return the results of a task at the greatest length by method, in their order.

    It is the first task that the model knows. Without a result of the first method there are none.
    """
    cells = summary.retrieval.dropna(subset="accuracy")
    known = cells[cells["accuracy"] > UNKNOWN]["task"]
    cells = cells[cells["task"] == (known if len(known) else cells["task"]).head(1).squeeze()]
    cells = cells[cells["multiple"] == cells["multiple"].max()].set_index("method")
    methods = [name for name in summary.methods if name in cells.index]
    return cells.loc[methods if summary.methods[0] in methods else []]


def percent(entry: Mapping[str, Any]) -> str:
    """Return the accuracy of an entry with its interval, in %."""
    value, low, high = (100 * entry[key] for key in ("accuracy", "low", "high"))
    return with_ends(value, low, high, unit=" %")

"""What a study shows, as a sentence; what to measure instead where it shows nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ntk_alibi import _files
from ntk_alibi.evaluation.report.cells import with_ends, with_half_width
from ntk_alibi.evaluation.report.markdown import counted, table
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
    return answered(summary)


def answered(summary: Any) -> str | None:
    """Return a clause that says how many questions the model answers; None without questions.

    It is about what `unanswered` is about.
    """
    found = summary.retrieval.dropna(subset="accuracy")
    if found.empty:
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
    return [
        "measure instead:",
        "  the loss by position, which needs no task",
        command("eval", "--model", model, "--records", "0", *methods),
        "  shorter records, and a key hidden in prose",
        command(
            *("eval", "--model", model, "--lengths", *lengths),
            *("--passkey-records", "8", "--prose-windows", "0", "--methods", ORIGINAL),
        ),
        "  any task of lm-evaluation-harness that it knows, for chats by its template",
        command("lm-eval", *harness, "--tasks", "TASK", "--apply_chat_template"),
    ]


def better_method(summary: Any) -> str | None:
    """Return the best method at the greatest length, if it is better than the first beyond chance.

    Within chance of the best, the recommended method is it.
    """
    found = _farthest(summary)
    if len(found) < 2:
        return None
    best = _best(found)
    return best if _is_better(found, best) else None


def conclusion(summary: Any) -> list[str]:
    """Return a sentence that names the best method at the greatest length, or says there is none.

    Within chance of the best, the recommended method is named. It is about the first task that the
    model knows. There is none of a single method.
    """
    found = _farthest(summary)
    if len(found) < 2:
        return []
    first, best = found.iloc[0], found.loc[_best(found)]
    where = counted(first["multiple"], "training length")
    where += f" ({round(first['multiple'] * summary.train_length)} tokens)"
    task = f"of the questions about {first['task']}"
    if better_method(summary) is None:
        return [
            f"No method is better than {first.name} beyond chance at {where}: {first.name} answers "
            f"{percent(first)} {task}, {best.name} {percent(best)}."
        ]
    points = with_half_width(100 * best["gain"], 100 * best["gain_half_width"], 0)
    gain = "" if math.isnan(best["gain"]) else f", {points} points"
    shown = f"it answers {percent(best)} {task}, {first.name} {percent(first)}{gain}"
    most = found.loc[found["accuracy"][1:].idxmax()]
    if most["accuracy"] > best["accuracy"]:
        return [
            f"At {where} no method is better than {best.name} beyond chance: {shown}; {most.name} "
            f"{percent(most)}."
        ]
    return [f"The best method at {where} is {best.name}: {shown}."]


def markdown_to_share(summary: Any, model: str) -> list[str]:
    """Return what another person needs of a study, as lines of Markdown.

    That is the model, its training length, versions, and the answered questions by method, kind of
    record and length, with their intervals.

    Args:
        summary: a summary with answers.
        model: the name of the model.
    """
    found = summary.retrieval.dropna(subset="accuracy")
    lengths = (found["multiple"] * summary.train_length).round().astype(int).astype(str)
    found = found.assign(column=found["task"] + ", " + lengths + " tokens")
    found = found.assign(cell=[percent(row) for _, row in found.iterrows()])
    cells = found.pivot(index="method", columns="column", values="cell").fillna("")
    cells = cells.loc[[x for x in summary.methods if x in cells.index], found["column"].unique()]
    known = summary.settings.get("versions", {})
    versions = ", ".join(f"{name} {each}" for name, each in known.items())
    named = f"{model}, trained at {summary.train_length} tokens"
    return [
        "to share, in Markdown:",
        "",
        f"{named}; {versions}" if versions else named,
        "",
        table(["method", *cells.columns], [[name, *row] for name, row in cells.T.items()]),
        "",
    ]


def _best(found: DataFrame) -> str:
    """Return the name of the best method besides the first.

    That is the one that has the greatest accuracy. The recommended one takes its place if its
    interval has this accuracy, unless the other alone is better than the first.
    """
    others = found[1:]
    greatest = str(others["accuracy"].idxmax())
    near = others.index[others["high"] >= others["accuracy"].max()]
    if RECOMMENDED in near and (_is_better(found, RECOMMENDED) or not _is_better(found, greatest)):
        return RECOMMENDED
    return greatest


def _is_better(found: DataFrame, name: str) -> bool:
    """Return whether a method is better than the first beyond chance.

    That is, the 95 % interval of its gain, which is paired by record, is above zero. Where there is
    none, because all records agree, the interval of its accuracy is above the first one's.
    """
    first, other = found.iloc[0], found.loc[name]
    least = other["gain"] - other["gain_half_width"]
    if math.isnan(least):
        least = other["low"] - first["high"]
    return bool(least > 0)


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

"""Results of the study over all models: a summary, Markdown tables and figures.

Every interval is Student's over models with different training seeds. Each model read other
records, so the intervals cover trainings and texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ntk_alibi import _files, plots
from ntk_alibi.evaluation.report.markdown import describe_machine, table
from studies.means import curve_means, curves, paired_p, plus_minus, points, share
from studies.stretchings.models import GROUPS, NanoModel
from studies.stretchings.reading import BASELINE, GENERATED_AT, PROSE_AT, RULES, ReadingPlan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Summary: TypeAlias = dict[str, Any]

#: Sections of the document.
SECTIONS = (
    "machine",
    "endpoint",
    "seeds",
    "seeds-gains",
    "prose-books",
    "generated",
    "regimes",
    "tasks",
    "tasks-gains",
    "farther",
    "farther-gains",
)

#: The greatest multiple that all models read.
PLANNED = max(multiple for multiple, _ in ReadingPlan().records)

#: The rule of the primary endpoint, which is compared with the baseline at this multiple.
ENDPOINT_RULE, ENDPOINT_AT = "dynamic-flat", 4

#: Curves of the figures.
SHOWN = (
    "original",
    "ntk:FACTOR",
    "dynamic-ntk",
    "dynamic-flat",
    "dynamic-knee:START:7",
    "dynamic-flat:logn=0.5",
)

#: Curves of the figure over length.
FIRST_SHOWN = ("original", "dynamic-ntk", "dynamic-flat")


def summarise(output: Path) -> Summary:
    """Collect the results of all models.

    Args:
        output: folder of the study.

    Returns:
        A dictionary with these keys:
        machine: the description of the machine;
        models: for each group, the models with results: name, regime, train_length, seed, and cells
            by task, rule and multiple: share of right answers, and the share among answers farther
            back than the training length (None if there are none); prose: nats beyond it minus
            the original's, by rule; generated: share of right answers by rule.

    Raises:
        ValueError: no model has results.
    """
    models = {
        group: [
            found
            for model in members
            if (found := _of_model(model, output / model.name)) is not None
        ]
        for group, members in GROUPS.items()
    }
    if not any(models.values()):
        raise ValueError(f"{output} must hold results of models, got none")
    return {"machine": describe_machine(), "models": models}


def _of_model(model: NanoModel, folder: Path) -> dict[str, Any] | None:
    found: dict[str, Any] = {"cells": {}, "prose": {}, "generated": {}}
    for path in sorted(folder.glob("*.json")):
        if path.stem.startswith("records-") or path.stem in ("prose", "generated"):
            with _files.readable("results of the study", path):
                _add(found, model, path.stem, _files.read_json(path))
    if not found["cells"]:
        return None
    recipe = model.recipe
    named = {"name": model.name, "regime": model.regime, "seed": recipe.seed}
    return {**named, "train_length": recipe.train_length, **found}


def _add(found: dict[str, Any], model: NanoModel, name: str, result: dict[str, Any]) -> None:
    length = model.recipe.train_length
    if name == "prose":
        for spelling, rule in RULES.items():
            method = rule.method(PROSE_AT, length)
            beyond = [
                e["difference"]
                for e in result["perplexity"]
                if e["method"] == method and e["begin"] >= 1
            ]
            found["prose"][spelling] = float(np.mean(beyond))
        return
    if name == "generated":
        values = {row["method"]: row["accuracy"] for row in result["generated"]}
        for spelling, rule in RULES.items():
            found["generated"][spelling] = values[rule.method(GENERATED_AT, length)]
        return
    for entry in result["retrieval"]:
        multiple, method = entry["multiple"], entry["method"]
        beyond = [
            e
            for e in result["by_distance"]
            if (e["task"], e["method"]) == (entry["task"], method)
            and e["begin"] >= 1
            and e["cases"]
        ]
        cases = sum(e["cases"] for e in beyond)
        right = sum(round(e["accuracy"] * e["cases"]) for e in beyond)
        cell = {"share": entry["accuracy"], "beyond": right / cases if cases else None}
        for spelling, rule in RULES.items():
            if rule.method(int(multiple), length) == method:
                of_rule = found["cells"].setdefault(entry["task"], {}).setdefault(spelling, {})
                of_rule[str(int(multiple))] = cell


def shares(
    models: Iterable[Summary], task: str, rule: str, multiple: int, *, beyond: bool = False
) -> list[float]:
    """Return the share of right answers of each model that has it.

    Args:
        models: models of a summary.
        task: a task, such as "lines".
        rule: a key of RULES.
        multiple: multiple of the training length.
        beyond: whether to count only answers farther back than the training length.
    """
    key = "beyond" if beyond else "share"
    cells = (m["cells"].get(task, {}).get(rule, {}).get(str(multiple), {}) for m in models)
    return [cell[key] for cell in cells if cell.get(key) is not None]


def gains(
    models: Iterable[Summary], task: str, rule: str, multiple: int, *, beyond: bool = False
) -> list[float]:
    """Return each model's share minus its share with the baseline, as `shares` does."""
    pairs = (
        [shares([m], task, name, multiple, beyond=beyond) for name in (rule, BASELINE)]
        for m in models
    )
    return [first[0] - second[0] for first, second in pairs if first and second]


def tables(summary: Summary) -> dict[str, str]:
    """Format the Markdown table of each section of the document, by the section's name.

    Args:
        summary: from `summarise`.
    """
    seeds, regimes = summary["models"]["seeds"], summary["models"]["regimes"]
    made = {"machine": summary["machine"]}
    groups = {"nano BLOOM": seeds, **_by_regime(regimes)}
    if seeds:
        made |= {
            "endpoint": _endpoint(
                {"nano BLOOM": seeds, "nano MPT, all": regimes, **_by_regime(regimes)}
            ),
            "seeds": _over_multiples(seeds, shares, share),
            "seeds-gains": _over_multiples(seeds, gains, points),
            "prose-books": _by_rule(groups, "prose", _nats, PROSE_AT),
            "generated": _by_rule(groups, "generated", share, GENERATED_AT),
        }
    if regimes:
        made["regimes"] = _regimes(regimes)
        made["tasks"] = _over_multiples(regimes, shares, share)
        made["tasks-gains"] = _over_multiples(regimes, gains, points)
        made["farther"] = _over_multiples(regimes, shares, share, farther=True)
        made["farther-gains"] = _over_multiples(regimes, gains, points, farther=True)
    return made


def _by_regime(models: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Return the models of each regime, by a label."""
    return {
        f"regime {regime:g}": [m for m in models if m["regime"] == regime]
        for regime in sorted({m["regime"] for m in models})
    }


def _endpoint(groups: dict[str, list[Summary]]) -> str:
    rows = []
    for label, models in groups.items():
        first, base = (
            shares(models, "lines", rule, ENDPOINT_AT, beyond=True)
            for rule in (ENDPOINT_RULE, BASELINE)
        )
        paired = gains(models, "lines", ENDPOINT_RULE, ENDPOINT_AT, beyond=True)
        if not paired:
            continue
        gained = [points(paired), paired_p(paired), " ".join(f"{100 * x:+.0f}" for x in paired)]
        rows.append([label, str(len(paired)), share(base), share(first), *gained])
    header = ["", "models", BASELINE, ENDPOINT_RULE, "gain", "p (paired t)", "each model"]
    return table(header, rows)


def _shown(rule: str, multiples: Iterable[int], models: Iterable[Summary]) -> str:
    return RULES[rule].shown(multiples, (model["train_length"] for model in models))


def _over_multiples(
    models: Sequence[Summary],
    values: Callable[..., list[float]],
    written: Callable[[Sequence[float]], str],
    *,
    farther: bool = False,
) -> str:
    """Format a table for each task, with a row for each rule and a column for each multiple.

    The multiples are those that all models read, or with `farther` those beyond.
    """
    parts = []
    for task in dict.fromkeys(task for m in models for task in m["cells"]):
        found = {
            int(x) for m in models for of_rule in m["cells"].get(task, {}).values() for x in of_rule
        }
        multiples = sorted(x for x in found if (x > PLANNED) == farther)
        rows = [
            [_shown(rule, multiples, models), *map(written, cells)]
            for rule in RULES
            if any(cells := [values(models, task, rule, x) for x in multiples])
        ]
        if rows:
            parts.append(table([task, *(f"{x}x" for x in multiples)], rows))
    return "\n\n".join(parts) or "No results yet."


def _by_rule(
    groups: dict[str, list[Summary]],
    key: str,
    written: Callable[[Sequence[float]], str],
    multiple: int,
) -> str:
    every = [model for models in groups.values() for model in models]
    rows = [
        [
            _shown(rule, [multiple], every),
            *(
                written([m[key][rule] for m in models if rule in m[key]])
                for models in groups.values()
            ),
        ]
        for rule in RULES
    ]
    return table(["", *groups], rows)


def _regimes(models: Sequence[Summary]) -> str:
    """Format lines found in each regime, at 1, 4 and 16 times the training length."""
    multiples = (1, 4, 16)
    columns = [(x, label, group) for x in multiples for label, group in _by_regime(models).items()]
    rows = [
        [
            _shown(rule, multiples, models),
            *(share(shares(group, "lines", rule, x)) for x, _, group in columns),
        ]
        for rule in RULES
    ]
    return table(["lines", *(f"{label}, {x}x" for x, label, _ in columns)], rows)


def _nats(values: Sequence[float]) -> str:
    return plus_minus(values, 4)


def figures(summary: Summary) -> dict[str, Figure]:
    """Draw the lines found over length, and over the regime, by the name of the picture's file.

    Args:
        summary: from `summarise`.
    """
    seeds, regimes = summary["models"]["seeds"], summary["models"]["regimes"]
    made = {}
    if seeds:
        made["stretching-lines"] = _over_length(seeds)
    if len(_by_regime(regimes)) > 1:
        made["stretching-regimes"] = _over_regime(regimes)
    return made


def _over_length(models: Sequence[Summary]) -> Figure:
    """Draw few curves with their names at the right ends: it is the first picture seen."""
    from matplotlib.figure import Figure

    multiples = sorted({int(x) for m in models for x in m["cells"]["lines"][BASELINE]})
    train_length = models[0]["train_length"]
    made = Figure(figsize=(5.6, 3.8), layout="constrained")
    cells = {
        _shown(rule, multiples, models): [shares(models, "lines", rule, x) for x in multiples]
        for rule in FIRST_SHOWN
    }
    axes = curves(cells, multiples, train_length, "lines found, %", ax=made.subplots())
    axes.legend().remove()
    means = curve_means(cells, 100.0)
    for curve in axes.get_lines():
        if (label := str(curve.get_label())) in means:
            axes.annotate(
                label,
                (1.02, means[label][-1]),
                xycoords=axes.get_yaxis_transform(),
                color=curve.get_color(),
                va="center",
                annotation_clip=False,
            )
    axes.set_ylim(0.0, 103.0)
    axes.set_title(f"nano BLOOM, mean of {len(models)} trainings, 95 % band")
    return made


def _over_regime(models: Sequence[Summary]) -> Figure:
    from matplotlib.figure import Figure

    groups = _by_regime(models)
    made = Figure(figsize=(12, 4.6), layout="constrained")
    for axes, multiple in zip(made.subplots(1, 2, sharey=True), (4, 16), strict=True):
        cells = {
            _shown(rule, [multiple], models): [
                shares(group, "lines", rule, multiple) for group in groups.values()
            ]
            for rule in SHOWN
        }
        values = [group[0]["regime"] for group in groups.values()]
        plots.extrapolation_curves(values, curve_means(cells), quantity="lines found, %", ax=axes)
        # Intervals of three models cover the whole picture, so the models themselves are shown.
        for curve, row in zip(axes.get_lines(), cells.values(), strict=False):
            points = [(x, 100 * y) for x, column in zip(values, row, strict=True) for y in column]
            axes.scatter(*zip(*points, strict=True), s=14, color=curve.get_color(), alpha=0.5)
        axes.set_ylim(-3.0, 103.0)
        axes.set_xlabel("training length x flattest slope")
        axes.set_title(f"nano MPT: lines found at {multiple}x, mean and each training")
    return made

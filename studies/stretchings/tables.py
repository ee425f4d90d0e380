"""Results of the study over all models: a summary, Markdown tables and a figure.

Every interval is Student's over models with different training seeds. Each model read other
records, so the intervals cover trainings and texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ntk_alibi import _files
from ntk_alibi.evaluation.report.markdown import describe_machine, table
from ntk_alibi.methods import ORIGINAL, RECOMMENDED
from studies.forms import FRESH, HELD_OUT, NEW
from studies.means import curves, p_value, paired_p, plus_minus, points, share
from studies.stretchings.models import WIDTHS, NanoMPTRecipe, recipes
from studies.stretchings.reading import KINDS, RULES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Summary: TypeAlias = dict[str, Any]

#: Sections of the document.
SECTIONS = ("machine", "endpoint", "trend", "fresh", "new", "far", "all", "forms", "prose")

#: The multiple of the training length of the endpoints, and the pairs of rules that they compare.
#: The primary endpoint is the first pair's, in the forms `NEW`.
ENDPOINT_AT = 4
ENDPOINTS = ((RECOMMENDED, ORIGINAL), (RECOMMENDED, "dynamic-flat"))

#: Curves of the figure.
SHOWN = (ORIGINAL, RECOMMENDED, "dynamic-flat", "interpolation:FACTOR")


def summarise(output: Path) -> Summary:
    """Collect the results of all models.

    Args:
        output: folder of the study.

    Returns:
        A dictionary with these keys:
        machine: the description of the machine;
        train_length: the training length of all models;
        models: for each size, the models with results: name, seed, parameters; shares, by form
            (or a key of KINDS, for all forms of that kind), rule and multiple the share of right
            answers ("all") and the share among answers farther back than the training length
            ("far", None if there are none); prose: nats beyond it minus the original's, by rule.

    Raises:
        ValueError: no model has results.
    """
    models = {
        size: [found for recipe in recipes(size) if (found := _of_model(recipe, output))]
        for size in WIDTHS
    }
    if not any(models.values()):
        raise ValueError(f"{output} must hold results of models, got none")
    return {
        "machine": describe_machine(),
        "train_length": NanoMPTRecipe().train_length,
        "models": models,
    }


def _of_model(recipe: NanoMPTRecipe, output: Path) -> Summary | None:
    folder = output / recipe.name
    found: Summary = {"name": recipe.name, "seed": recipe.seed, "shares": {}, "prose": {}}
    for path in sorted(x for kind in KINDS for x in folder.glob(f"{kind}-*x.json")):
        kind, _, multiple = path.stem.removesuffix("x").partition("-")
        with _files.readable("results of the study", path):
            result = _files.read_json(path)
            found["parameters"] = result["parameters"]
            for rule in RULES:
                answers = {form: of[rule] for form, of in result["answers"].items()}
                answers[kind] = [x for of_form in answers.values() for x in of_form]
                for form, outcomes in answers.items():
                    far = [right for x, right in outcomes if x > recipe.train_length]
                    of_rule = found["shares"].setdefault(form, {}).setdefault(rule, {})
                    of_rule[multiple] = {
                        "all": float(np.mean([right for _, right in outcomes])),
                        "far": float(np.mean(far)) if far else None,
                    }
    if (path := folder / "prose.json").exists():
        with _files.readable("results of the study", path):
            found["prose"] = _files.read_json(path)["nats"]
    return found if found["shares"] else None


def shares(
    models: Iterable[Summary],
    rule: str,
    multiple: int,
    answers: str = "far",
    form: str = "records",
) -> list[float]:
    """Return the share of right answers of each model that has it.

    Args:
        models: models of a summary.
        rule: a key of RULES.
        multiple: multiple of the training length.
        answers: "all", or "far" for those farther back than the training length.
        form: a form, or a key of KINDS.
    """
    cells = (model["shares"].get(form, {}).get(rule, {}).get(str(multiple), {}) for model in models)
    return [cell[answers] for cell in cells if cell.get(answers) is not None]


def gains(
    models: Iterable[Summary], rule: str, base: str, multiple: int, form: str = "records"
) -> list[float]:
    """Return each model's share of far answers with a rule minus its share with another."""
    pairs = (
        [shares([model], name, multiple, form=form) for name in (rule, base)] for model in models
    )
    return [first[0] - second[0] for first, second in pairs if first and second]


def tables(summary: Summary) -> dict[str, str]:
    """Format the Markdown table of each section of the document, by the section's name.

    Args:
        summary: from `summarise`.
    """
    sizes = {label(models): models for models in summary["models"].values() if models}
    return {
        "machine": summary["machine"],
        "endpoint": _endpoint(sizes, "records"),
        "trend": _trend(sizes),
        "fresh": _endpoint(sizes, "fresh"),
        "new": _endpoint(sizes, "new"),
        "far": _over_multiples(summary, sizes, "far"),
        "all": _over_multiples(summary, sizes, "all"),
        "forms": _by_form(summary, sizes),
        "prose": _prose(sizes),
    }


def label(models: Sequence[Summary]) -> str:
    """Return the name of a size: its parameters in millions."""
    return f"{models[0]['parameters'] / 1e6:.1f} million"


def _endpoint(sizes: dict[str, list[Summary]], form: str) -> str:
    rows = []
    for size, models in sizes.items():
        for rule, base in ENDPOINTS:
            gained = gains(models, rule, base, ENDPOINT_AT, form)
            each = " ".join(f"{100 * gain:+.0f}" for gain in gained)
            before, after = (share(shares(models, x, ENDPOINT_AT, form=form)) for x in (base, rule))
            named = f"{rule} over {base}"
            count = str(len(gained))
            rows.append([size, named, count, before, after, points(gained), paired_p(gained), each])
    header = ["size", "", "models", "before", "after", "gain", "p (paired t)", "each model"]
    return table(header, rows)


def _trend(sizes: dict[str, list[Summary]]) -> str:
    """Format slopes of gains over the logarithm of the size, by least squares over all models."""
    from scipy.stats import linregress

    rows = []
    for rule, base in ENDPOINTS:
        found = [
            (np.log2(model["parameters"]), 100 * gain)
            for models in sizes.values()
            for model in models
            for gain in gains([model], rule, base, ENDPOINT_AT)
        ]
        cells = ["", ""]
        if len({x for x, _ in found}) > 1 and len(found) > 2:
            line = linregress(*zip(*found, strict=True))
            cells = [f"{line.slope:+.1f}", p_value(line.pvalue)]
        rows.append([f"{rule} over {base}", str(len(found)), *cells])
    return table(["", "models", "points for each doubling of the size", "p"], rows)


def _over_multiples(summary: Summary, sizes: dict[str, list[Summary]], answers: str) -> str:
    """Format a table for each size, with a row for each rule and a column for each multiple."""
    parts = []
    for size, models in sizes.items():
        multiples = [x for x in _multiples(models) if shares(models, ORIGINAL, x, answers)]
        rows = [
            [
                RULES[rule].shown(multiples),
                *(share(shares(models, rule, x, answers)) for x in multiples),
            ]
            for rule in RULES
        ]
        parts.append(table([size, *(f"{x}x" for x in multiples)], rows))
    return "\n\n".join(parts)


def _multiples(models: Iterable[Summary]) -> list[int]:
    return sorted({int(x) for model in models for x in model["shares"]["records"][ORIGINAL]})


def _by_form(summary: Summary, sizes: dict[str, list[Summary]]) -> str:
    """Format answers in each form by the largest size: all of them at 1x, and far ones."""
    size, models = list(sizes.items())[-1]
    forms = [*HELD_OUT, *FRESH, *NEW]
    within = (shares(models, ORIGINAL, 1, "all", form) for form in forms)
    rows = [[f"{ORIGINAL}, all answers at 1x", *map(share, within)]]
    for rule in RULES:
        far = (shares(models, rule, ENDPOINT_AT, form=form) for form in forms)
        rows.append([f"{RULES[rule].shown([ENDPOINT_AT])}, far, {ENDPOINT_AT}x", *map(share, far)])
    return table([size, *forms], rows)


def _prose(sizes: dict[str, list[Summary]]) -> str:
    rows = [
        [
            rule,
            *(
                plus_minus([m["prose"][rule] for m in models if rule in m["prose"]], 3)
                for models in sizes.values()
            ),
        ]
        for rule in RULES
    ]
    return table(["", *sizes], rows)


def figures(summary: Summary) -> dict[str, Figure]:
    """Draw the far answers found over length by the largest models, by the name of the picture.

    Args:
        summary: from `summarise`.
    """
    from matplotlib.figure import Figure

    models = [models for models in summary["models"].values() if models][-1]
    multiples = [x for x in _multiples(models) if x > 1]  # others have no far answers
    made = Figure(figsize=(5.6, 3.8), layout="constrained")
    cells = {
        RULES[rule].shown(multiples): [shares(models, rule, x, "far") for x in multiples]
        for rule in SHOWN
    }
    found = "far answers found, %"
    axes = curves(cells, multiples, summary["train_length"], found, ax=made.subplots())
    axes.set_title(f"forms not trained on, {len(models)} models of {label(models)} parameters")
    return {"stretching-forms": made}

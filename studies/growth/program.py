"""Which factor a text gets that grows under a cache: rules for dynamic NTK, read side by side.

`python -m studies.growth --stretchings FOLDER --output FOLDER` reads with the embedded BLOOM, and
with the MPTs that `python -m studies.stretchings --output FOLDER` has trained. Readings resume from
their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ntk_alibi import _files
from ntk_alibi.evaluation.report.markdown import describe_machine, table
from ntk_alibi.models import load
from studies.command import check_options, print_each, report, study_parser
from studies.growth.reading import GrowthPlan, read
from studies.growth.rules import ORIGINAL, RULES, WAYS
from studies.nano_bloom.program import NanoBloomRecipe
from studies.results_file import ResultsFile
from studies.stretchings.models import recipes

#: Sections of the document.
SECTIONS = ("machine", "rules", "ways", "lengths")

#: The tokens of the shortest record that has room for its questions.
SHORTEST = 200

#: The embedded model.
EMBEDDED = "nano-bloom"


def read_model(name: str, trained: Path, output: Path, plan: GrowthPlan) -> list[str]:
    """Read with one model what is not stored yet.

    Args:
        name: `EMBEDDED`, or the folder of an MPT.
        trained: the folder of the MPTs.
        output: the folder of the results.
        plan: what is read.

    Returns:
        A line for each new result.
    """
    recipe = NanoBloomRecipe() if name == EMBEDDED else _recipes()[name]
    loaded, lines = None, []
    for multiple, count in plan.records:
        if multiple * recipe.train_length < SHORTEST:
            continue
        file = ResultsFile(output / f"{name}-{multiple:g}x.json", recipe, plan)
        if file.read() is None:
            loaded = loaded or load(name if name == EMBEDDED else trained / name)
            file.write(read(loaded, plan, recipe.seed, multiple, count))
            lines.append(f"{name}, {multiple:g}x")
    return lines


def _recipes() -> dict[str, Any]:
    return {recipe.name: recipe for group in ("middle", "large") for recipe in recipes(group)}


def summarise(output: Path, plan: GrowthPlan) -> dict[str, Any]:
    """Collect the results: shares by model, length, rule and way."""
    found: dict[str, Any] = {}
    for name in (EMBEDDED, *_recipes()):
        for multiple, _ in plan.records:
            path = output / f"{name}-{multiple:g}x.json"
            if path.exists():
                shares = _files.read_json(path)["shares"]
                found.setdefault(name, {})[f"{multiple:g}"] = shares
    if not found:
        raise ValueError(f"{output} must hold results of models, got none")
    return {"machine": describe_machine(), "plan": asdict(plan), "shares": found}


def tables(summary: dict[str, Any]) -> dict[str, str]:
    """Format the table of each section: means of shares in %, in which each cell counts the same.

    A cell is a model, a length and a way.
    """
    models = summary["shares"]
    lengths = list(next(iter(models.values())))

    def mean(rule: str, names: Any = None, at: Any = None, ways: Any = None) -> str:
        cells = [
            models[name][length][rule][way]
            for name in names or models
            for length in at or lengths
            if length in models[name]
            for way in ways or WAYS
        ]
        return f"{100 * np.mean(cells):.1f}"

    rules = [ORIGINAL, *RULES]
    every = {
        "rules": (
            ["all cells", *models],
            [[rule, mean(rule), *(mean(rule, names=[m]) for m in models)] for rule in rules],
        ),
        "ways": (list(WAYS), [[r, *(mean(r, ways=[w]) for w in WAYS)] for r in rules]),
        "lengths": (
            [f"{x}x" for x in lengths],
            [[r, *(mean(r, at=[x]) for x in lengths)] for r in rules],
        ),
    }
    made = {name: table(["rule", *header], rows) for name, (header, rows) in every.items()}
    return {"machine": summary["machine"], **made}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line: read with all models, and print the tables."""
    about = str(__doc__).partition("\n")[0]
    parser = study_parser("python -m studies.growth", about, output="growth")
    parser.add_argument(
        "--stretchings", type=Path, default=Path("stretchings"), help="folder of trained MPTs"
    )
    options = parser.parse_args(arguments)
    check_options(options, SECTIONS)
    names = [x for x in _recipes() if (options.stretchings / x / "model.safetensors").exists()]
    plan = GrowthPlan()
    work = partial(read_model, trained=options.stretchings, output=options.output, plan=plan)
    with _files.only_run("--output", options.output):
        print_each(work, [EMBEDDED, *names], options.processes)
        summary = summarise(options.output, plan)
    report(tables(summary), options, ("growth.json", summary), dict, dpi=110)

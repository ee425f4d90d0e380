"""A summary of the study's results over all models, and the comparisons among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ntk_alibi import _files
from studies.schemes import grid
from studies.schemes.readings import READING_MODES, views
from studies.schemes.schemes import SCHEMES
from studies.training import LEARNED

Summary: TypeAlias = dict[str, Any]

#: Seeds of the study.
SEEDS = range(5)

#: The primary endpoint: this quantity at this multiple of the training length.
ENDPOINT, ENDPOINT_AT = "beyond", 4

#: Name of the reading that all models share, and of what all others are compared with.
PLAIN = READING_MODES[0].name
BASELINE = f"alibi/{PLAIN}"

#: Fields of recipes in which the models of one study differ.
OWN_FIELDS = ("scheme", "seed", "muon_rate", "first_weights_std", "until_learned")


def summarise(output: Path) -> Summary:
    """Collect the outcomes of the grid, and the results of all finished models.

    Args:
        output: folder of the study.

    Returns:
        A dictionary with these keys:
        recipe and plan: the settings that all models share;
        grid: for each scheme whose runs are all finished, its runs: muon_rate, first_weights_std,
            seed, learned_at, steps, loss and cpu_seconds;
        setting: for each of these schemes, the setting chosen;
        training: for each scheme with finished models, lists over the seeds: seeds, learned_at (the
            steps to learn, or None), qualifies (whether at least 95 % are right at the training
            length), cpu_seconds, wall_seconds and reading_cpu_seconds;
        measured: for each "scheme/reading" and multiple of the training length, lists over the
            seeds: pairs, the share of questions with a right answer; beyond, the same share over
            the questions whose answer is farther back than the training length (None if there are
            none); nats, the nats per token of prose; change, the difference of nats from the same
            model's, read as trained with a context of one training length.

    Raises:
        ValueError: nothing is finished, models have different recipes or plans, or a model has
            another setting than its scheme's runs chose.
    """
    summary: Summary = {key: {} for key in ("grid", "setting", "training", "measured")}
    for scheme in SCHEMES:
        runs = [_read(summary, path) for path in output.glob(f"grid/{scheme}-[0-9]*/outcome.json")]
        if len(runs) == len(grid.SETTINGS) * len(grid.GRID_SEEDS):
            _add_grid(summary, scheme, runs)
        paths = output.glob(f"{scheme}-[0-9]*/results.json")
        for path in sorted(paths, key=lambda path: int(path.parent.name.rpartition("-")[2])):
            results = _read(summary, path)
            setting = summary["setting"].setdefault(scheme, results["setting"])
            if results["setting"] != setting:
                raise ValueError(
                    f"{path} must have the setting {setting}, got {results['setting']}"
                )
            with _files.readable("results of the study", path):
                _add_model(summary, scheme, results)
    if not (summary["grid"] or summary["training"]):
        raise ValueError(f"{output} must hold models that are finished, has none")
    return summary


def _read(summary: Summary, path: Path) -> dict[str, Any]:
    """Read a file of results, with its setting and seed taken out of the recipe."""
    results: dict[str, Any] = _files.read_json(path)
    with _files.readable("results of the study", path):
        own = {name: results["recipe"].pop(name) for name in OWN_FIELDS}
        shared = {name: results.pop(name) for name in ("recipe", "plan")}
    if {name: summary.setdefault(name, value) for name, value in shared.items()} != shared:
        raise ValueError(f"{path} was made by another recipe or plan than the others")
    setting = {name: own[name] for name in ("muon_rate", "first_weights_std")}
    return {"setting": setting, "seed": own["seed"], **results}


def _add_grid(summary: Summary, scheme: str, runs: list[dict[str, Any]]) -> None:
    outcomes = [(grid.Setting(**run.pop("setting")), run) for run in runs]
    outcomes.sort(key=lambda pair: (grid.SETTINGS.index(pair[0]), pair[1]["seed"]))
    summary["grid"][scheme] = [{**vars(setting), **run} for setting, run in outcomes]
    summary["setting"][scheme] = dict(vars(grid.choose(outcomes)))


def _add_model(summary: Summary, scheme: str, results: dict[str, Any]) -> None:
    train_length = summary["recipe"]["train_length"]
    measured = results["measured"]
    if views(SCHEMES[scheme], summary["plan"]["multiples"], train_length).keys() - measured:
        return  # not finished
    first = measured[f"{PLAIN}/1"]
    seconds = ("cpu_seconds", "wall_seconds")
    taken = {name: round(results["training"][name], 1) for name in seconds}
    values = {
        "seeds": results["seed"],
        "learned_at": results["training"]["learned_at"],
        "qualifies": float(np.mean(first["right"])) >= LEARNED,
        **taken,
        "reading_cpu_seconds": round(results["reading_cpu_seconds"], 1),
    }
    _append(summary["training"].setdefault(scheme, {}), values)
    for key, result in measured.items():
        reading, multiple = key.split("/")
        cells = summary["measured"].setdefault(f"{scheme}/{reading}", {})
        _append(cells.setdefault(multiple, {}), _numbers(result, first, train_length))


def _append(lists: dict[str, list[Any]], values: dict[str, Any]) -> None:
    for name, value in values.items():
        lists.setdefault(name, []).append(value)


def _numbers(
    result: dict[str, Any], first: dict[str, Any], train_length: int
) -> dict[str, float | None]:
    right = np.array(result["right"])
    far = right[np.array(result["distances"]) > train_length]
    nats, before = (float(np.mean(x["nats"])) for x in (result, first))
    return {
        "pairs": round(float(right.mean()), 4),
        "beyond": round(float(far.mean()), 4) if far.size else None,
        "nats": round(nats, 4),
        "change": round(nats - before, 4),
    }


def qualifying(summary: Summary, scheme: str) -> list[int]:
    """Return the seeds of the runs that reach at least 95 % at the training length."""
    training = summary["training"].get(scheme, {"seeds": [], "qualifies": []})
    both = zip(training["seeds"], training["qualifies"], strict=True)
    return [seed for seed, qualifies in both if qualifies]


def comparable(summary: Summary, name: str) -> bool:
    """Return whether a "scheme/reading" has results of a run that qualifies."""
    return name in summary["measured"] and bool(qualifying(summary, name.partition("/")[0]))


def by_seed(
    summary: Summary, name: str, quantity: str, multiple: int, *, every: bool = False
) -> dict[int, float]:
    """Return the measured results of one cell by seed.

    Args:
        summary: from `summarise`.
        name: the pair "scheme/reading".
        quantity: "pairs", "beyond", "nats" or "change".
        multiple: multiple of the training length.
        every: whether to take all runs; else only those that `qualifying` returns.
    """
    scheme = name.partition("/")[0]
    seeds = summary["training"].get(scheme, {}).get("seeds", [])
    kept = seeds if every else qualifying(summary, scheme)
    values = summary["measured"].get(name, {}).get(str(multiple), {}).get(quantity, [])
    return {
        seed: value
        for seed, value in zip(seeds, values, strict=bool(values))
        if value is not None and seed in kept
    }


def differences(summary: Summary, name: str) -> dict[int, float]:
    """Return the primary endpoint of a "scheme/reading" minus the baseline's, by the seed.

    Both runs of a seed, which read the same texts, must qualify.
    """
    own, base = (by_seed(summary, x, ENDPOINT, ENDPOINT_AT) for x in (name, BASELINE))
    return {seed: own[seed] - base[seed] for seed in own if seed in base}


def cpu_hours(summary: Summary) -> dict[str, float]:
    """Return the CPU hours of the grid, of the trainings and of the readings."""
    trainings = summary["training"].values()
    seconds = {
        "grid": sum(run["cpu_seconds"] for runs in summary["grid"].values() for run in runs),
        "trainings": sum(sum(taken["cpu_seconds"]) for taken in trainings),
        "readings": sum(sum(taken["reading_cpu_seconds"]) for taken in trainings),
    }
    return {name: spent / 3600 for name, spent in seconds.items()}

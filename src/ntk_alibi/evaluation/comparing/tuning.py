"""Search for the scaling and factor that suit a length, with an estimate of its certainty.

The method with the highest retrieval accuracy wins, because retrieval is the purpose of stretching.
Among methods within a standard error of the highest accuracy, the lowest perplexity wins. The
chosen method is then tested on new records that the search did not use.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _checks
from ntk_alibi.evaluation.comparing import length_study, plan
from ntk_alibi.evaluation.comparing.intervals import accuracy_interval
from ntk_alibi.methods import ORIGINAL, parse_method
from ntk_alibi.models.loading import NANO_BLOOM

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Floats = NDArray[np.float64]

#: Number of resamplings of the records.
RESAMPLINGS = 2000

#: Offset of the seed that draws the new records for the test of the chosen method.
FRESH = 1


@dataclass(frozen=True)
class Search:
    """The settings of a search.

    Attributes:
        length: target context length in tokens.
        train_length: training length in tokens.
        methods: names of the candidates; the original is always one of them.
        records: number of records of lines; half as many records of topics are used.
        windows: number of windows of prose.
        seed: seed of the records.
    """

    length: int
    train_length: int
    methods: tuple[str, ...] = ()
    records: int = 8
    windows: int = 4
    seed: int = 7

    @property
    def candidates(self) -> tuple[str, ...]:
        """`methods` with the original first; by default factors around length / train_length."""
        if self.methods:
            return tuple(dict.fromkeys((ORIGINAL, *self.methods)))
        stretch = max(1.0, self.length / self.train_length)
        factors = sorted({float(f"{stretch * step:.3g}") for step in (0.5, 1, 2, 4)})
        static = [
            f"{kind}:{factor:g}"
            for kind, factor in itertools.product(("interpolation", "ntk"), factors)
            if factor > 1
        ]
        return (ORIGINAL, *static, "dynamic-ntk:1", "dynamic-ntk:2")

    def plan(self, methods: Sequence[str], seed: int, windows: int) -> plan.Plan:
        """Return the plan of a length study for some of the methods."""
        return plan.Plan(
            self.train_length,
            methods=tuple(methods),
            multiples=(self.length / self.train_length,),
            line_records=self.records,
            topic_records=max(1, self.records // 2),
            prose_windows=windows,
            seed=seed,
        )


def search(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    wanted: Search,
    path: Path,
    *,
    quiet: bool = False,
    name: str = NANO_BLOOM,
) -> dict[str, Any]:
    """Search for the best method; answers already stored in path are reused.

    Args:
        model: an unpatched BLOOM, MPT or Falcon.
        tokenizer: the model's tokenizer.
        wanted: the settings of the search.
        path: folder for all single answers; it is kept when the search is done.
        quiet: whether to hide the progress bars.
        name: name of the model.

    Returns:
        A dictionary with these keys:
        model, length and train_length;
        candidates: for each method, the accuracy over all questions with its 95 % interval (low,
            high), the difference from the original in nats per token with its half-width, and the
            share of resamplings of the records in which the method is chosen (best_share);
        chosen: name of the chosen method; sure: its best_share;
        fresh: accuracy and interval of the chosen method and of the original on new records;
        settings: for each method, the model's settings as the harness records them.
    """
    _checks.integer("length", wanted.length, minimum=1)
    for method in wanted.candidates:
        parse_method(method, wanted.train_length)
    plan = wanted.plan(wanted.candidates, wanted.seed, wanted.windows)
    summary = length_study.evaluate(model, tokenizer, plan, path, quiet=quiet, name=name)
    clusters, nats = _clusters(summary), _nats(summary)
    chosen = _choose(clusters, nats, np.arange(clusters.shape[1]))
    shares = _best_shares(clusters, nats, wanted.seed)
    candidates = []
    for i, method in enumerate(wanted.candidates):
        right, questions = clusters[i, :, 0], clusters[i, :, 1]
        low, high = accuracy_interval(right.astype(int).tolist(), questions.astype(int).tolist())
        difference = nats[i] - nats[0]
        half_width = _half_width(difference)
        candidates.append(
            {
                **{"method": method, "label": summary["methods"][method]},
                **{"accuracy": right.sum() / questions.sum(), "low": low, "high": high},
                **{"difference": float(difference.mean()), "half_width": half_width},
                "best_share": shares[i],
            }
        )
    name_of_chosen = wanted.candidates[chosen]
    return {
        **{"model": name, "length": wanted.length, "train_length": wanted.train_length},
        "candidates": candidates,
        "chosen": name_of_chosen,
        "sure": shares[chosen],
        "fresh": _try(model, tokenizer, wanted, name_of_chosen, path, quiet, name),
        "settings": summary["settings"],
    }


def _try(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    wanted: Search,
    chosen: str,
    path: Path,
    quiet: bool,
    name: str,
) -> dict[str, Any]:
    methods = dict.fromkeys((ORIGINAL, chosen))
    plan = replace(wanted.plan(list(methods), wanted.seed + FRESH, 0), prose_windows=0)
    summary = length_study.evaluate(model, tokenizer, plan, path, quiet=quiet, name=name)
    clusters = _clusters(summary).astype(int)
    results = {}
    for i, method in enumerate(methods):
        right, questions = clusters[i, :, 0].tolist(), clusters[i, :, 1].tolist()
        low, high = accuracy_interval(right, questions)
        results[method] = {"accuracy": sum(right) / sum(questions), "low": low, "high": high}
    return results


def _clusters(summary: dict[str, Any]) -> Floats:
    """Return the right answers and the questions of each record, (methods, records, 2)."""
    return np.array([summary["records"][method] for method in summary["methods"]], np.float64)


def _nats(summary: dict[str, Any]) -> Floats:
    """Return the mean nats per token of each window, (methods, windows)."""
    return np.array([summary["windows"][method] for method in summary["methods"]], np.float64)


def _choose(clusters: Floats, nats: Floats, records: NDArray[np.integer[Any]]) -> int:
    """Choose the method with the fewest nats among the most accurate ones on the records.

    The most accurate methods are those within a standard error of the highest accuracy.
    """
    drawn = clusters[:, records]
    accuracy = drawn[..., 0].sum(1) / drawn[..., 1].sum(1)
    best = int(accuracy.argmax())
    gaps = (drawn[best, :, 0] - drawn[..., 0]) / drawn[best, :, 1].mean()
    errors = gaps.std(axis=1, ddof=1) / math.sqrt(len(records)) if len(records) > 1 else 0.0 * gaps
    level = accuracy >= accuracy[best] - errors - 1e-12
    return int(np.where(level, nats.mean(axis=1), np.inf).argmin())


def _best_shares(clusters: Floats, nats: Floats, seed: int) -> list[float]:
    """Return the share of bootstrap resamplings (records and windows) that choose each method."""
    rng, counts = np.random.default_rng(seed), np.zeros(len(clusters))
    for _ in range(RESAMPLINGS):
        records = rng.integers(clusters.shape[1], size=(clusters.shape[1],))
        windows = rng.integers(nats.shape[1], size=(nats.shape[1],))
        counts[_choose(clusters, nats[:, windows], records)] += 1
    return [float(count) / RESAMPLINGS for count in counts]


def _half_width(values: Floats) -> float:
    if len(values) < 2:
        return math.nan
    return float(1.96 * values.std(ddof=1) / math.sqrt(len(values)))

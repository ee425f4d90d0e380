"""Choosing a scaling and its factor for a length, and saying how sure the choice is.

Retrieval decides, since that is what stretching is for; among methods that retrieval cannot tell
from the best one, perplexity does. What is chosen is then tried on records that took no part.
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
from ntk_alibi.evaluation.comparing.methods import ORIGINAL, parse_method
from ntk_alibi.models.loading import NANO_BLOOM

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


Floats = NDArray[np.float64]

#: Resamplings of the records.
RESAMPLINGS = 2000

#: Added to the seed of the records that the choice is tried on.
FRESH = 1


@dataclass(frozen=True)
class Search:
    """What is searched.

    Attributes:
        length: tokens, at which the model shall work.
        train_length: tokens trained at.
        methods: candidates; the original is always among them.
        records: of lines, half as many of topics.
        windows: of prose.
        seed: of the records.
    """

    length: int
    train_length: int
    methods: tuple[str, ...] = ()
    records: int = 8
    windows: int = 4
    seed: int = 7

    @property
    def candidates(self) -> tuple[str, ...]:
        """The methods given, or the usual factors about length / train_length."""
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
        """What is done for it."""
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
    """Search, resuming what path holds of it.

    Args:
        model: an unpatched BLOOM, MPT or Falcon.
        tokenizer: the model's.
        wanted: what to search.
        path: folder of all single answers, kept when done.
        quiet: no progress bars.
        name: of the model.

    Returns:
        candidates: for each method its accuracy and 95 % interval (low, high) over all questions,
            nats a token less the original's with their half-width, and the share of resamplings of
            the records in which it would have been chosen (best_share);
        chosen: its name; sure: its best_share;
        fresh: accuracy and interval of the chosen and of the original on records drawn anew.
    """
    _checks.integer("length", wanted.length, minimum=1)
    for method in wanted.candidates:
        parse_method(method, wanted.train_length)
    plan = wanted.plan(wanted.candidates, wanted.seed, wanted.windows)
    found = length_study.evaluate(model, tokenizer, plan, path, quiet=quiet, name=name)
    clusters, nats = _clusters(found), _nats(found)
    chosen = _choose(clusters, nats, np.arange(clusters.shape[1]))
    shares = _best_shares(clusters, nats, wanted.seed)
    candidates = []
    for i, method in enumerate(wanted.candidates):
        right, asked = clusters[i, :, 0], clusters[i, :, 1]
        low, high = accuracy_interval(right.astype(int).tolist(), asked.astype(int).tolist())
        difference = nats[i] - nats[0]
        half_width = _half_width(difference)
        candidates.append(
            {
                **{"method": method, "label": found["methods"][method]},
                **{"accuracy": right.sum() / asked.sum(), "low": low, "high": high},
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
        "settings": found["settings"],
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
    found = length_study.evaluate(model, tokenizer, plan, path, quiet=quiet, name=name)
    clusters = _clusters(found).astype(int)
    results = {}
    for i, method in enumerate(methods):
        right, asked = clusters[i, :, 0].tolist(), clusters[i, :, 1].tolist()
        low, high = accuracy_interval(right, asked)
        results[method] = {"accuracy": sum(right) / sum(asked), "low": low, "high": high}
    return results


def _clusters(found: dict[str, Any]) -> Floats:
    """Right answers and questions of each record: (methods, records, 2)."""
    return np.array([found["records"][method] for method in found["methods"]], np.float64)


def _nats(found: dict[str, Any]) -> Floats:
    """Mean nats a token of each window: (methods, windows)."""
    return np.array([found["windows"][method] for method in found["methods"]], np.float64)


def _choose(clusters: Floats, nats: Floats, records: NDArray[np.integer[Any]]) -> int:
    """The best of some records: within a standard error of the highest accuracy, fewest nats."""
    some = clusters[:, records]
    accuracy = some[..., 0].sum(1) / some[..., 1].sum(1)
    best = int(accuracy.argmax())
    gaps = (some[best, :, 0] - some[..., 0]) / some[best, :, 1].mean()
    errors = gaps.std(axis=1, ddof=1) / math.sqrt(len(records)) if len(records) > 1 else 0.0 * gaps
    level = accuracy >= accuracy[best] - errors - 1e-12
    return int(np.where(level, nats.mean(axis=1), np.inf).argmin())


def _best_shares(clusters: Floats, nats: Floats, seed: int) -> list[float]:
    """How often each method is chosen when records and windows are drawn with replacement."""
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

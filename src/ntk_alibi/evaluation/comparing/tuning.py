"""A search for the best method at a text length, which tells how sure the choice is.

The search reads calibration texts: first many methods on few records, then the best ones and their
neighbours, last the finalists on all records. The method with the highest accuracy wins, since
retrieval is the purpose of stretching; among methods within a standard error of it, the one with
the fewest nats. The choice is then compared with NTK and the original on held-out records and
prose, which no search reads.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _checks
from ntk_alibi.evaluation.comparing import length_study, plan
from ntk_alibi.evaluation.comparing.candidates import families, refinements
from ntk_alibi.evaluation.comparing.intervals import (
    accuracy_entry,
    half_width,
    paired_difference,
)
from ntk_alibi.evaluation.comparing.summary import Summary
from ntk_alibi.evaluation.records.record import check_lengths
from ntk_alibi.methods import ORIGINAL, RECOMMENDED, parse_method
from ntk_alibi.models.loading import NANO_BLOOM
from ntk_alibi.scaling import scaling_to_config

if TYPE_CHECKING:
    from pandas import DataFrame
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Floats = NDArray[np.float64]

#: Number of bootstrap resamplings of the records.
RESAMPLINGS = 2000

#: Number of finalists besides the original, the best NTK and the recommended method, and of methods
#: whose neighbours are tried.
FINALISTS, REFINED = 3, 2

#: The share of the records that all methods read, before the finalists read the others.
SCREENED = 0.25


@dataclass(frozen=True)
class Search:
    """The settings of a search.

    Attributes:
        length: length of the texts in tokens.
        train_length: training length in tokens.
        methods: names of the candidates, all of which read all records; the original is added. By
            default, the search makes its candidates.
        records: number of records of lines; there are half as many of topics.
        windows: number of windows of prose.
        seed: seed of the records; searches with different seeds share none.
        budget: number of methods that read a quarter of the records to find the finalists, by
            default 32; not with methods.
    """

    length: int
    train_length: int
    methods: tuple[str, ...] = ()
    records: int = 8
    windows: int = 4
    seed: int = 7
    budget: int | None = None

    def __post_init__(self) -> None:
        for name in ("records", "windows"):
            _checks.integer(name, getattr(self, name), minimum=1)
            check_lengths("length", [self.length], getattr(self, name), of=name)
        _checks.integer("train_length", self.train_length, minimum=1)
        _checks.integer("seed", self.seed, minimum=0)
        if self.budget is not None:
            _checks.integer("budget", self.budget, minimum=2)
            if self.methods:
                raise ValueError(
                    f"budget must not be given with methods, which are all read, got {self.budget}"
                )
        for method in self.methods:
            parse_method(method, max(2, self.train_length))

    @property
    def tries(self) -> int:
        """The number of methods that read a quarter of the records."""
        return 32 if self.budget is None else self.budget

    @property
    def candidates(self) -> tuple[str, ...]:
        """The original and `methods`, or the methods with which a search begins."""
        if self.methods:
            return tuple(dict.fromkeys((ORIGINAL, *self.methods)))
        return families(self.length, self.train_length)[: self.tries]

    def plan(self, methods: Sequence[str], *, held_out: bool, share: float = 1.0) -> plan.Plan:
        """Return the plan of a study of methods on a share of the records."""
        lines = min(self.records, max(2, round(share * self.records)))
        return plan.Plan(
            self.train_length,
            methods=tuple(methods),
            multiples=(self.length / self.train_length,),
            line_records=lines,
            topic_records=max(1, lines // 2),
            prose_windows=max(1, round(share * self.windows)),
            seed=2 * self.seed + held_out,
            split="held-out" if held_out else "training",
        )


@dataclass(frozen=True, eq=False)
class Tuning:
    """What a search found; frames are pandas frames.

    Attributes:
        model: name of the model.
        length: length of the texts in tokens.
        train_length: training length in tokens.
        trace: what was tried, in order: stage, method, accuracy and nats.
        candidates: for each finalist, the number of questions (cases), the accuracy with its 95 %
            interval (low, high), the difference from the original in nats per token with its
            half-width, and the share of resamplings in which it is chosen (best_share).
        chosen: name of the method that the search prefers.
        fresh: method, cases, accuracy and interval of the chosen method, the original, NTK, and the
            recommended method if it is a finalist, on held-out records.
        paired: the gain in accuracy of the chosen method over each of the others on the same
            held-out questions, and its difference in nats on the same held-out prose, with 95 %
            half-widths over records and windows.
        answer: the chosen method if it `is_better`, else "original".
        config: the entries of a model's config for the answer.
        settings: for each finalist, the settings of the model as the harness stores them.
    """

    model: str
    length: int
    train_length: int
    trace: DataFrame
    candidates: DataFrame
    chosen: str
    fresh: DataFrame
    paired: DataFrame
    answer: str
    config: dict[str, Any]
    settings: Mapping[str, Any]

    @property
    def sure(self) -> float:
        """The share of resamplings in which the chosen method is chosen."""
        return float(self.candidates.set_index("method")["best_share"][self.chosen])


def search(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    wanted: Search,
    path: str | os.PathLike[str],
    *,
    quiet: bool = False,
    name: str = NANO_BLOOM,
) -> Tuning:
    """Search for the best method; answers that are in path are reused.

    Args:
        model: an unpatched decoder that `patch` takes.
        tokenizer: the model's tokenizer.
        wanted: the settings of the search.
        path: folder for all answers, which stays.
        quiet: whether to hide the progress bars.
        name: name of the model.

    Raises:
        TypeError, ValueError: an argument is wrong.
    """
    import pandas as pd

    length_study.check_study(model, tokenizer, path)
    if not isinstance(wanted, Search):
        raise TypeError(f"wanted must be a Search, got {_checks.briefly(wanted)}")
    read = partial(length_study.evaluate, model, tokenizer, path=path, quiet=quiet, name=name)
    trace: list[DataFrame] = []
    finalists = wanted.candidates
    if not wanted.methods:
        finalists = _finalists(read, wanted, int(model.config.num_hidden_layers), trace)
    summary = read(wanted.plan(finalists, held_out=False))
    trace.append(_scores("finalists", finalists, summary))
    candidates, best = _judge(finalists, summary, wanted.seed)
    ntk = _best_ntk(trace[-1], wanted)
    fresh, paired = _compare_held_out(read, wanted, best, ntk, finalists)
    answer = parse_method(best if is_better(fresh, paired) else ORIGINAL, wanted.train_length)
    config = {"alibi_scaling": scaling_to_config(answer.scaling)}
    if answer.log_n is not None:
        config["alibi_log_n"] = answer.log_n.to_config()
    return Tuning(
        name,
        wanted.length,
        wanted.train_length,
        trace=pd.concat(trace, ignore_index=True),
        candidates=candidates,
        chosen=best,
        fresh=fresh,
        paired=paired,
        answer=answer.name,
        config=config,
        settings=summary.settings,
    )


def _judge(finalists: Sequence[str], summary: Summary, seed: int) -> tuple[DataFrame, str]:
    """Return the candidates of a search, and the name of the best one."""
    import pandas as pd

    clusters, nats = _clusters(summary), _nats(summary)
    chosen = choose(clusters, nats, np.arange(clusters.shape[1]))
    accuracies = [accuracy_entry(*of_method.astype(int).T.tolist()) for of_method in clusters]
    differences = nats - nats[0]
    candidates = pd.DataFrame({"method": finalists}).join(pd.DataFrame(accuracies))
    candidates = candidates.assign(
        difference=differences.mean(axis=1),
        half_width=half_width(differences.T),
        best_share=choice_shares(clusters, nats, seed),
    )
    return candidates, finalists[chosen]


def _finalists(
    read: Callable[[plan.Plan], Summary], wanted: Search, layers: int, trace: list[DataFrame]
) -> tuple[str, ...]:
    """Return the finalists, by a quarter of the records.

    They are the original, the best NTK, the recommended method and the best ones.
    """
    tried: list[str] = []

    def screen(stage: str, names: Iterable[str]) -> list[str]:
        """Try methods that are new, and return all that were tried, the best first."""
        import pandas as pd

        new = [name for name in names if name not in tried][: wanted.tries - len(tried)]
        if new:
            tried.extend(new)
            summary = read(wanted.plan(new, held_out=False, share=SCREENED))
            trace.append(_scores(stage, new, summary))
        return _ranked(pd.concat(trace))

    ranked = screen("families", wanted.candidates)
    neighbours = [other for name in ranked[:REFINED] for other in refinements(name, layers)]
    ranked = screen("refinements", neighbours)
    ntk = [name for name in ranked if name.startswith("ntk:")][:1]
    advised = [RECOMMENDED] if RECOMMENDED in ranked else []
    return tuple(dict.fromkeys((ORIGINAL, *ntk, *advised, *ranked[:FINALISTS])))


def _scores(stage: str, methods: Sequence[str], summary: Summary) -> DataFrame:
    """Return rows of the trace."""
    import pandas as pd

    right, questions = _clusters(summary).sum(axis=1).T
    scores = {"accuracy": right / questions, "nats": _nats(summary).mean(axis=1)}
    return pd.DataFrame({"stage": stage, "method": methods, **scores})


def _ranked(scores: DataFrame) -> list[str]:
    """Return the methods, the most accurate first; among equals, the one with the lowest loss."""
    return list(scores.sort_values(["accuracy", "nats"], ascending=[False, True])["method"])


def _best_ntk(finalists: DataFrame, wanted: Search) -> str:
    """Return the best NTK of the finalists, or the one by the ratio of the lengths."""
    if tried := [name for name in _ranked(finalists) if name.startswith("ntk:")]:
        return tried[0]
    return f"ntk:{max(1.0, wanted.length / wanted.train_length):g}"


def _compare_held_out(
    read: Callable[[plan.Plan], Summary],
    wanted: Search,
    chosen: str,
    ntk: str,
    finalists: Sequence[str],
) -> tuple[DataFrame, DataFrame]:
    """Compare the chosen method with the others on held-out texts.

    They are the original, NTK, and the recommended method if it is a finalist.
    """
    import pandas as pd

    advised = [RECOMMENDED] if RECOMMENDED in finalists else []
    methods = tuple(dict.fromkeys((ORIGINAL, ntk, *advised, chosen)))
    summary = read(wanted.plan(methods, held_out=True))
    clusters = dict(zip(methods, _clusters(summary).astype(int), strict=True))
    nats = dict(zip(methods, _nats(summary), strict=True))
    fresh = [
        {"method": name, **accuracy_entry(*counts.T.tolist())} for name, counts in clusters.items()
    ]
    paired = []
    for method in methods:
        if method == chosen:
            continue
        right, questions = clusters[method].T
        gain, width = paired_difference(clusters[chosen][:, 0], right, questions)
        change = nats[chosen] - nats[method]
        paired.append((chosen, method, gain, width, change.mean(), half_width(change)))
    columns = ["method", "against", "gain", "gain_half_width", "nats", "nats_half_width"]
    return pd.DataFrame(fresh), pd.DataFrame(paired, columns=columns)


def is_better(fresh: DataFrame, paired: DataFrame) -> bool:
    """Return whether the chosen method does better than the original on held-out texts.

    That is, it answers more questions, or no fewer while it predicts prose with fewer nats. Only
    differences beyond their 95 % interval count. `Tuning` has both frames.
    """
    for pair in paired.to_dict("records"):
        if pair["against"] == ORIGINAL:
            low, high = _ends_of_gain(fresh, pair)
            return low > 0 or (high >= 0 and pair["nats"] + pair["nats_half_width"] < 0)
    return False


def contradicting_methods(fresh: DataFrame, paired: DataFrame) -> list[str]:
    """Return the methods that answer more of the held-out questions than the chosen one.

    Only differences beyond their 95 % interval count. `Tuning` has both frames.
    """
    pairs = paired.to_dict("records")
    return [pair["against"] for pair in pairs if _ends_of_gain(fresh, pair)[1] < 0]


def is_level(fresh: DataFrame, paired: DataFrame) -> bool:
    """Return whether the recommended method was compared, and answers as much as the chosen one.

    Only differences beyond their 95 % interval count. `Tuning` has both frames.
    """
    pairs = [pair for pair in paired.to_dict("records") if pair["against"] == RECOMMENDED]
    return any(low <= 0 <= high for low, high in (_ends_of_gain(fresh, pair) for pair in pairs))


def _ends_of_gain(fresh: DataFrame, pair: dict[str, Any]) -> tuple[float, float]:
    """Return the ends of the 95 % interval of a gain.

    Where all records agree there is no paired interval; the intervals of both accuracies serve.
    """
    gain, width = pair["gain"], pair["gain_half_width"]
    if not math.isnan(width):
        return gain - width, gain + width
    ends = fresh.set_index("method")
    chosen, other = ends.loc[pair["method"]], ends.loc[pair["against"]]
    return chosen["low"] - other["high"], chosen["high"] - other["low"]


def _clusters(summary: Summary) -> Floats:
    """Return the right answers and the questions of each record, (methods, records, 2)."""
    return np.array([summary.records[method] for method in summary.methods], np.float64)


def _nats(summary: Summary) -> Floats:
    """Return the nats per token of each window, (methods, windows)."""
    return np.array([summary.windows[method] for method in summary.methods], np.float64)


def choose(clusters: Floats, nats: Floats, records: NDArray[np.integer[Any]]) -> int:
    """Choose the method with the fewest nats among the most accurate ones on some records.

    The most accurate ones are within a standard error of the highest accuracy.
    """
    drawn = clusters[:, records]
    accuracy = drawn[..., 0].sum(1) / drawn[..., 1].sum(1)
    best = int(accuracy.argmax())
    gaps = (drawn[best, :, 0] - drawn[..., 0]) / drawn[best, :, 1].mean()
    errors = gaps.std(axis=1, ddof=1) / math.sqrt(len(records)) if len(records) > 1 else 0.0 * gaps
    level = accuracy >= accuracy[best] - errors - 1e-12
    return int(np.where(level, nats.mean(axis=1), np.inf).argmin())


def choice_shares(clusters: Floats, nats: Floats, seed: int) -> list[float]:
    """Return the share of resamplings of records and windows in which each method is chosen."""
    rng, counts = np.random.default_rng(seed), np.zeros(len(clusters))
    for _ in range(RESAMPLINGS):
        records = rng.integers(clusters.shape[1], size=(clusters.shape[1],))
        windows = rng.integers(nats.shape[1], size=(nats.shape[1],))
        counts[choose(clusters, nats[:, windows], records)] += 1
    return [float(count) / RESAMPLINGS for count in counts]

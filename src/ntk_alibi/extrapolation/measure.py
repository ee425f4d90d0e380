"""Measurements of the study's models: retrieval and prose loss in several reading modes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from ntk_alibi.evaluation.records import corpus
from ntk_alibi.evaluation.records.record import Case
from ntk_alibi.extrapolation.decoder import Decoder
from ntk_alibi.extrapolation.schemes import AttentionView, Positions, XposPositions
from ntk_alibi.scaling import NTK, Interpolation
from ntk_alibi.training.training import Training

#: Number of tokens in one forward pass.
BATCH_TOKENS = 8192


@dataclass(frozen=True)
class MeasurePlan:
    """Lengths and numbers of records and windows of the measurements.

    Attributes:
        multiples: multiples of the training length at which models read.
        records: number of records of pairs at each length.
        windows: number of windows of prose; at every multiple their last tokens are the same, and
            only the context before them grows.
        seed: seed of the records, which are the same for all models.
    """

    multiples: tuple[int, ...] = (1, 2, 4, 8)
    records: int = 32
    windows: int = 32
    seed: int = 2026


@dataclass(frozen=True)
class ReadingMode:
    """A way to read texts that are longer than in training.

    Attributes:
        name: name in results.
        label: label in tables.
        view: function of the multiple of the training length and the training length; it returns
            None where the mode would change nothing.
        applies: function that returns whether the mode is available for a scheme.
    """

    name: str
    label: str
    view: Callable[[int, int], AttentionView | None]
    applies: Callable[[type[Positions]], bool] = lambda scheme: True


def _stretched(name: str, label: str, kind: Callable[[float], Any]) -> ReadingMode:
    """Make the mode that stretches a scheme by the multiple of the training length."""

    def view(multiple: int, length: int) -> AttentionView | None:
        return AttentionView(scaling=kind(float(multiple))) if multiple > 1 else None

    return ReadingMode(name, label, view, lambda scheme: kind in scheme.scalings)


#: The first mode reads as in training. XPOS's blocks have half the training length.
READING_MODES = (
    ReadingMode("plain", "as trained", lambda multiple, length: AttentionView()),
    ReadingMode(
        "window", "window", lambda m, length: AttentionView(window=length) if m > 1 else None
    ),
    ReadingMode("log-n", "log-n", lambda m, length: AttentionView(log_n=length) if m > 1 else None),
    _stretched("pi", "interpolation", Interpolation),
    _stretched("ntk", "NTK", NTK),
    ReadingMode(
        "blocks",
        "blocks",
        lambda multiple, length: AttentionView(causal_block=length // 2),
        lambda scheme: scheme is XposPositions,
    ),
)


def views(
    scheme: type[Positions], plan: MeasurePlan, train_length: int
) -> dict[str, AttentionView]:
    """Return all views with which a scheme reads, by "<reading>/<multiple>"."""
    return {
        f"{mode.name}/{multiple}": view
        for multiple in plan.multiples
        for mode in READING_MODES
        if mode.applies(scheme) and (view := mode.view(multiple, train_length)) is not None
    }


class Measurement:
    """The measurements of a trained model; records and windows are the same for all models.

    Args:
        trained: a training whose model is a `Decoder`.
        plan: lengths and numbers of records and windows.
    """

    def __init__(self, trained: Training, plan: MeasurePlan) -> None:
        self._model: Decoder = trained.model.eval()
        self._scheme = type(self._model.layers[0].positions)
        self._train_length: int = trained.recipe.train_length
        self._record_kind = trained.line_task(self._train_length)
        self._padding = int(trained.tokenizer.pad_token_id)
        self._encode = trained.encode
        self._plan = plan

    def run(self, known: Container[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Measure the views whose keys are not in known.

        Yields:
            The key "<reading>/<multiple>" and the results: for each question whether the answer is
            right (right) and its distance (distances), and for each window of prose the nats per
            token (nats).
        """
        every = views(self._scheme, self._plan, self._train_length)
        for multiple in self._plan.multiples:
            todo = {
                key: view
                for key, view in every.items()
                if key.endswith(f"/{multiple}") and key not in known
            }
            if not todo:
                continue
            cases, windows = self._cases(multiple), self._windows(multiple)
            for key, view in todo.items():
                self._model.view = view
                yield key, {**self._answers(cases), "nats": self._nats(windows)}
        self._model.view = AttentionView()

    def _cases(self, multiple: int) -> list[Case]:
        rng = np.random.default_rng([self._plan.seed, multiple])
        length = multiple * self._train_length
        records = range(self._plan.records)
        return [self._record_kind.case(self._encode, length, rng) for _ in records]

    def _windows(self, multiple: int) -> torch.Tensor:
        """Cut windows of prose, (windows, length), that end in the same tokens at all multiples."""
        chapters = self._encode([chapter + "\n" for chapter in corpus.held_out_text()])
        prose = np.array([token for chapter in chapters for token in chapter], np.int64)
        longest = max(self._plan.multiples) * self._train_length
        ends = np.linspace(longest, len(prose), self._plan.windows).astype(int)
        length = multiple * self._train_length
        return torch.from_numpy(np.stack([prose[end - length : end] for end in ends]))

    @torch.inference_mode()
    def _answers(self, cases: list[Case]) -> dict[str, Any]:
        """Return for each question whether the likeliest tokens are right, and the distance."""
        right: list[bool] = []
        length = max(len(case.tokens) for case in cases)
        for batch in _batches(cases, length):
            tokens = torch.full((len(batch), length), self._padding)
            before = torch.zeros((len(batch), length), dtype=torch.bool)
            for row, case in enumerate(batch):
                tokens[row, : len(case.tokens)] = torch.from_numpy(case.tokens)
                for begin, end in case.answers:
                    before[row, begin - 1 : end - 1] = True
            expected = tokens.roll(-1, dims=1)[before]
            hits = (self._model(tokens, before).argmax(-1) == expected).tolist()
            for begin, end in (answer for case in batch for answer in case.answers):
                right.append(all(hits[: end - begin]))
                hits = hits[end - begin :]
        return {"right": right, "distances": [d for case in cases for d in case.distances]}

    @torch.inference_mode()
    def _nats(self, windows: torch.Tensor) -> list[float]:
        """Return the mean nats per token over the last half training length of each window."""
        scored = self._train_length // 2
        nats: list[float] = []
        for batch in _batches(windows, windows.shape[1]):
            before = torch.zeros(batch.shape, dtype=torch.bool)
            before[:, -scored - 1 : -1] = True
            losses = F.cross_entropy(
                self._model(batch, before), batch[:, -scored:].flatten(), reduction="none"
            )
            nats += losses.view(-1, scored).double().mean(dim=1).tolist()
        return nats


def _batches(rows: Any, length: int) -> Iterator[Any]:
    step = max(1, BATCH_TOKENS // length)
    return (rows[begin : begin + step] for begin in range(0, len(rows), step))

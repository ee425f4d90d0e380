"""Measurements of the study's models in several reading modes: retrieval and prose loss.

Records and windows of prose depend on the seed of the training, not on the scheme: models with one
seed read the same texts, and models with different seeds read different ones.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from ntk_alibi.evaluation.records import corpus
from ntk_alibi.evaluation.records.record import Case
from studies.record_training import RecordTraining
from studies.schemes.decoder import Decoder
from studies.schemes.readings import views
from studies.schemes.schemes import AttentionView

#: Number of tokens in one forward pass.
BATCH_TOKENS = 8192


@dataclass(frozen=True)
class MeasurePlan:
    """The lengths of records and windows, and how many are measured.

    Attributes:
        multiples: multiples of the training length at which models read.
        records: number of records of pairs at each length.
        windows: number of windows of prose; at every multiple their last tokens are the same, and
            only the context before them grows.
        seed: seed of the texts, together with the seed of the training that is measured.
    """

    multiples: tuple[int, ...] = (1, 2, 4, 8)
    records: int = 32
    windows: int = 32
    seed: int = 2026


class Measurement:
    """The measurements of a trained model.

    Args:
        trained: a training whose model is a `Decoder`.
        plan: the lengths of records and windows, and how many are measured.
    """

    def __init__(self, trained: RecordTraining, plan: MeasurePlan) -> None:
        self._model: Decoder = trained.model.eval()
        self._scheme = type(self._model.layers[0].positions)
        self._train_length: int = trained.recipe.train_length
        self._held_out: str = trained.recipe.held_out
        self._seeds = [plan.seed, trained.recipe.seed]
        self._record_kind = trained.record_kind(self._train_length)
        self._padding = int(trained.tokenizer.pad_token_id)
        self._encode = trained.encode
        self._plan = plan

    def run(self, stored: Container[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Measure the views whose results are not stored yet.

        Yields:
            The key "<reading>/<multiple>" and the results: for each question whether the answer is
            right (right) and its distance (distances), the mean nats of an answer (loss), and for
            each window of prose the nats per token (nats).
        """
        every = views(self._scheme, self._plan.multiples, self._train_length)
        for multiple in self._plan.multiples:
            todo = {
                key: view
                for key, view in every.items()
                if key.endswith(f"/{multiple}") and key not in stored
            }
            if not todo:
                continue
            cases, windows = self.cases(multiple), self.windows(multiple)
            for key, view in todo.items():
                self._model.view = view
                yield key, {**self.answers(cases), "nats": self.nats(windows)}
        self._model.view = AttentionView()

    def loss(self) -> float:
        """Return the mean nats of an answer at the training length, read as trained."""
        self._model.view = AttentionView()
        loss: float = self.answers(self.cases(1))["loss"]
        return loss

    def cases(self, multiple: int) -> list[Case]:
        """Draw the records at a multiple of the training length."""
        rng = np.random.default_rng([*self._seeds, multiple])
        length = multiple * self._train_length
        records = range(self._plan.records)
        return [self._record_kind.case(self._encode, length, rng) for _ in records]

    def windows(self, multiple: int) -> torch.Tensor:
        """Cut windows of prose, (windows, length), that end in the same tokens at all multiples.

        A window lies within one held-out text. The tokens that are predicted do not overlap.
        """
        texts = [
            np.concatenate([np.array(part, np.int64) for part in self._encode(chapters)])
            for text in corpus.held_out_texts(self._held_out)
            if (chapters := [chapter + "\n" for chapter in text])
        ]
        longest = max(self._plan.multiples) * self._train_length
        ends = [
            (number, end)
            for number, text in enumerate(texts)
            for end in range(longest, len(text) + 1, self._scored)
        ]
        rng = np.random.default_rng(self._seeds)
        drawn = [ends[i] for i in rng.choice(len(ends), self._plan.windows, replace=False)]
        length = multiple * self._train_length
        return torch.from_numpy(np.stack([texts[i][end - length : end] for i, end in drawn]))

    @property
    def _scored(self) -> int:
        """Number of tokens at the end of a window that are predicted."""
        return self._train_length // 2

    @torch.inference_mode()
    def answers(self, cases: list[Case]) -> dict[str, Any]:
        """Return `right`, `distances` and `loss`, as `run` yields them."""
        right: list[bool] = []
        nats: list[float] = []
        length = max(len(case.tokens) for case in cases)
        for batch in _batches(cases, length):
            tokens = torch.full((len(batch), length), self._padding)
            before = torch.zeros((len(batch), length), dtype=torch.bool)
            for row, case in enumerate(batch):
                tokens[row, : len(case.tokens)] = torch.from_numpy(case.tokens)
                for begin, end in case.answers:
                    before[row, begin - 1 : end - 1] = True
            expected = tokens.roll(-1, dims=1)[before]
            logits = self._model(tokens, before)
            nats += F.cross_entropy(logits, expected, reduction="none").tolist()
            hits = (logits.argmax(-1) == expected).tolist()
            for begin, end in (answer for case in batch for answer in case.answers):
                right.append(all(hits[: end - begin]))
                hits = hits[end - begin :]
        distances = [d for case in cases for d in case.distances]
        return {"right": right, "distances": distances, "loss": float(np.mean(nats))}

    @torch.inference_mode()
    def nats(self, windows: torch.Tensor) -> list[float]:
        """Return the mean nats per token over the last half training length of each window."""
        scored = self._scored
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

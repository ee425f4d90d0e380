"""Training a small language model from scratch on the tasks of evaluation/tasks.py and on prose.

What all trainings share, whatever the model; train.py trains the embedded BLOOM, study.py compares
position schemes. What makes small models learn within minutes on two cores:

- a curriculum of lengths: records start with a line or two and grow by half whenever the running
  accuracy of the answers passes a threshold;
- Muon for the matrices of the blocks, AdamW for the rest;
- a loss that weighs answers fully, prose by half, and the unpredictable rest of records by a tenth.

A training can stop after any step; from its checkpoint it goes on to the same weights.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from ntk_alibi.evaluation.records import corpus
from ntk_alibi.evaluation.records.lines import Lines
from ntk_alibi.evaluation.records.record import Case, Encode, RecordKind, cached_encoder, encoder
from ntk_alibi.evaluation.records.topics import Topics
from ntk_alibi.training.tokenizer import SPECIAL_TOKENS, build_tokenizer


@dataclass(frozen=True)
class Recipe:
    """The choices of any training.

    Attributes:
        train_length: tokens; the last phase trains at this length.
        start_length: of the curriculum.
        threshold: running accuracy of the lines at which the length grows.
        growth: by what factor.
        tokens: a step, while lengths are below 1000; twice that beyond.
        layers, hidden_size, heads: of the model.
        shares: of prose, lines and topics.
        muon_rate, adam_rate: learning rates.
        record_weight: of what is no answer in records, in the loss; answers have 1.
        seed: of weights and records.
    """

    train_length: int = 2048
    start_length: int = 64
    threshold: float = 0.7
    growth: float = 1.5
    tokens: int = 4096
    layers: int = 3
    hidden_size: int = 128
    heads: int = 8
    shares: tuple[float, float, float] = (0.3, 0.5, 0.2)
    muon_rate: float = 0.02
    adam_rate: float = 2e-3
    record_weight: float = 0.1
    seed: int = 0


#: Weight of prose in the loss; answers have 1.
PROSE_WEIGHT = 0.5

#: Marks of answers in a batch.
_LINES, _TOPICS = 1, 2

#: Steps of the warm-up, and the least at one length.
WARM_UP, LEAST_STEPS = 60, 10

CHECKPOINT_SECONDS = 30.0
LOG_STEPS = 25


@dataclass
class Curriculum(ABC):
    """How far a training is, but for weights, optimizers and random numbers."""

    length: int
    step: int = 0
    steps_at_length: int = 0
    lines_accuracy: float = 0.0
    topics_accuracy: float = 0.0

    def advance(self, recipe: Any) -> None:
        """Count a step; grow the length when the lines are answered well."""
        self.step += 1
        self.steps_at_length += 1
        mastered = self.lines_accuracy > recipe.threshold and self.steps_at_length > LEAST_STEPS
        if self.length < recipe.train_length and (mastered or self.overdue(recipe)):
            self.length = min(recipe.train_length, int(self.length * recipe.growth))
            self.steps_at_length = 0

    def overdue(self, recipe: Any) -> bool:
        """Whether the length grows in any case."""
        return False

    def warm_up(self) -> float:
        """Factor of the learning rates in the first steps."""
        return min(1.0, (self.step + 1) / WARM_UP)

    @abstractmethod
    def rate(self, recipe: Any) -> float:
        """Factor of the learning rates."""

    @abstractmethod
    def finished(self, recipe: Any) -> bool:
        """Whether all steps are done."""


class Training(ABC):
    """A training that can stop after any step and go on later.

    Args:
        recipe: what to do.
        curriculum: at its beginning.

    Attributes:
        model: what is trained.
        tokenizer: its.
    """

    def __init__(self, recipe: Recipe, curriculum: Curriculum) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe: Any = recipe
        self.curriculum: Any = curriculum
        text = _text()
        self.tokenizer, self.encode = text.tokenizer, text.encode
        self._sentences, self._prose = text.sentences, text.prose
        self.model = self.make_model()
        self.optimizers = self.make_optimizers()
        self._rates = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        self.rng = np.random.default_rng(recipe.seed)

    @abstractmethod
    def make_model(self) -> Any:
        """The model with its first weights; torch is seeded."""

    @abstractmethod
    def logits(self, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Of the model for tokens (rows, length), where wanted; (wanted, vocabulary)."""

    def make_optimizers(self) -> list[torch.optim.Optimizer]:
        """Muon for the matrices of the blocks, AdamW for everything else."""
        matrices, others = parameter_groups(self.model)
        return [
            torch.optim.Muon(matrices, lr=self.recipe.muon_rate, momentum=0.95, weight_decay=0.1),
            self.adam(others, self.recipe.adam_rate),
        ]

    def adam(self, parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
        """AdamW as all trainings have it."""
        return torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        done: bool = self.curriculum.finished(self.recipe)
        return done

    def step(self) -> float:
        """One step on one batch; the loss."""
        tokens, weights, answers = self._batch()
        rate = self.curriculum.rate(self.recipe)
        for optimizer, rates in zip(self.optimizers, self._rates, strict=True):
            for group, full in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = full * rate
            optimizer.zero_grad()
        wanted = weights[:, 1:] > 0
        expected = tokens[:, 1:][wanted]
        logits = self.logits(tokens[:, :-1], wanted)
        nats = F.cross_entropy(logits, expected, reduction="none")
        loss = (nats * weights[:, 1:][wanted]).sum() / weights.sum()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self._record(logits.argmax(-1) == expected, answers[:, 1:][wanted])
        self.curriculum.advance(self.recipe)
        return loss.item()

    def _record(self, right: torch.Tensor, answers: torch.Tensor) -> None:
        for name, kind in (("lines_accuracy", _LINES), ("topics_accuracy", _TOPICS)):
            asked = answers == kind
            if asked.any():
                now = float(right[asked].float().mean())
                before = getattr(self.curriculum, name)
                setattr(self.curriculum, name, 0.9 * before + 0.1 * now)

    def _batch(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens, loss weights and where the answers are, each (rows, length)."""
        length = self.curriculum.length
        per_step = self.recipe.tokens * (1 if length < 1000 else 2)
        rows = [self._row(length) for _ in range(max(2, per_step // length))]
        parts = zip(*rows, strict=True)
        tokens, weights, answers = (torch.from_numpy(np.stack(part)) for part in parts)
        return tokens, weights, answers

    def _row(self, length: int) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int8]]:
        tokens = np.full(length, self.tokenizer.pad_token_id, np.int64)
        weights = np.zeros(length, np.float32)
        answers = np.zeros(length, np.int8)
        kind = self.rng.choice(3, p=self.recipe.shares)
        if kind == 0:
            begin = int(self.rng.integers(len(self._prose) - length))
            tokens[:] = self._prose[begin : begin + length]
            weights[:] = PROSE_WEIGHT
            return tokens, weights, answers
        case = self._case(kind, length)
        tokens[: len(case.tokens)] = case.tokens
        weights[: len(case.tokens)] = self.recipe.record_weight
        for begin, end in case.answers:
            weights[begin:end] = 1.0
            answers[begin:end] = kind
        return tokens, weights, answers

    def _case(self, kind: int, length: int) -> Case:
        if kind == _LINES:
            return self.line_task(length).case(self.encode, length, self.rng)
        questions = max(1, min(8, length // 100))
        task = Topics(self._sentences, questions, ask_any=True)
        return task.case(self.encode, length, self.rng)

    def line_task(self, length: int) -> RecordKind:
        """What records of lines of so many tokens are."""
        return Lines(max(1, min(length // 30, max(16, length // 64))))

    def save(self, path: Path) -> None:
        """Write a checkpoint, whole or not at all."""
        state = {
            "recipe": asdict(self.recipe),
            "curriculum": asdict(self.curriculum),
            "rng": self.rng.bit_generator.state,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(path)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint.

        Raises:
            ValueError: it belongs to another recipe.
        """
        state = torch.load(path, weights_only=True)
        if state["recipe"] != asdict(self.recipe):
            raise ValueError(
                f"{path} must be a checkpoint of {self.recipe}, got one of {state['recipe']}; "
                "choose another folder or remove it"
            )
        self.curriculum = type(self.curriculum)(**state["curriculum"])
        self.rng.bit_generator.state = state["rng"]
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    def run(
        self, checkpoint: Path, log: Path, report: Callable[[str], None] = lambda _: None
    ) -> None:
        """Do all steps, from the checkpoint if there is one.

        Args:
            checkpoint: written every CHECKPOINT_SECONDS, kept when done.
            log: JSON lines, one every LOG_STEPS steps.
            report: gets one line after each step.
        """
        if checkpoint.exists():
            self.load(checkpoint)
        saved = time.monotonic()
        while not self.finished:
            loss = self.step()
            state = self.curriculum
            report(
                f"step {state.step}, length {state.length}, loss {loss:.2f}, right: "
                f"lines {state.lines_accuracy:.2f}, topics {state.topics_accuracy:.2f}"
            )
            if state.step % LOG_STEPS == 0:
                with log.open("a") as file:
                    file.write(json.dumps({"loss": loss, **asdict(state)}) + "\n")
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                self.save(checkpoint)
                saved = time.monotonic()


def parameter_groups(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Matrices of the blocks, and everything else but for what position schemes learn."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if ".positions." in name:
            continue
        inside = parameter.ndim == 2 and "word_embeddings" not in name
        (matrices if inside else others).append(parameter)
    return matrices, others


@dataclass(frozen=True)
class _Text:
    """What is trained on, and how it becomes tokens."""

    tokenizer: Any
    encode: Encode
    sentences: tuple[str, ...]
    prose: NDArray[np.int64]


@cache
def _text() -> _Text:
    """Takes seconds and is the same each time."""
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(),
        **SPECIAL_TOKENS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    encode = cached_encoder(encoder(tokenizer))
    chapters = encode([chapter + "\n" for chapter in corpus.training_text()])
    prose = np.concatenate([np.array(chapter, np.int64) for chapter in chapters])
    return _Text(tokenizer, encode, corpus.sentences(corpus.training_text()), prose)

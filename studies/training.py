"""Training of small models from scratch on texts in which they must look up answers.

The base classes here are independent of the model and of the texts: record_training.py has the
texts of language models, and encoder/ has others. Three choices let small models learn within
minutes on two cores:

- a curriculum of lengths: texts start with a line or two and grow by half whenever the running
  accuracy of the answers passes a threshold;
- Muon for the matrices of the blocks, AdamW for all other parameters;
- a loss in which answers weigh most.

A training can stop after any step. When it resumes from its checkpoint it reaches the same weights.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from ntk_alibi import _files


@dataclass(frozen=True)
class Recipe:
    """Settings that every training has.

    Attributes:
        train_length: training length in tokens, which the last phase uses.
        start_length: first length of the curriculum in tokens.
        threshold: running accuracy above which the length grows.
        growth: factor by which the length grows.
        tokens: tokens in a step at lengths below 1000; twice as many at greater lengths.
        layers, hidden_size, heads: shape of the model.
        muon_rate, adam_rate: learning rates of Muon and AdamW.
        seed: seed of the first weights and of the data.
    """

    train_length: int = 2048
    start_length: int = 64
    threshold: float = 0.7
    growth: float = 1.5
    tokens: int = 4096
    layers: int = 3
    hidden_size: int = 128
    heads: int = 8
    muon_rate: float = 0.02
    adam_rate: float = 2e-3
    seed: int = 0

    def rows(self, length: int) -> int:
        """Return how many texts of a length a batch has."""
        per_step = self.tokens * (1 if length < 1000 else 2)
        return max(2, per_step // length)


@dataclass(frozen=True)
class Batch:
    """A batch of texts, each (rows, length).

    Attributes:
        tokens: what the model reads, int64.
        expected: the right token at each position, int64.
        weights: the weight of each position in the loss, float32; 0 for none.
        answers: True at the tokens that count for the running accuracy: each answer's first.
    """

    tokens: torch.Tensor
    expected: torch.Tensor
    weights: torch.Tensor
    answers: torch.Tensor


#: Number of warm-up steps, and number of steps at a length before it can grow.
WARM_UP, LEAST_STEPS = 60, 10

#: Files of a training in its folder, and how often they are written.
CHECKPOINT, LOG = "train.ckpt", "train.jsonl"
CHECKPOINT_SECONDS, LOG_STEPS = 30.0, 25


@dataclass
class Curriculum(ABC):
    """Progress of a training, without parameters, optimizers and the random generator.

    Attributes:
        length: current length in tokens.
        step: steps done.
        steps_at_length: steps done at the current length.
        accuracy: running accuracy of the answers' tokens.
        wall_seconds, cpu_seconds: time spent in training steps so far.
    """

    length: int
    step: int = 0
    steps_at_length: int = 0
    accuracy: float = 0.0
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def advance(self, recipe: Any) -> None:
        """Count a step, and grow the length once it is mastered."""
        self.step += 1
        self.steps_at_length += 1
        if self.length < recipe.train_length and self.mastered(recipe):
            self.length = min(recipe.train_length, int(self.length * recipe.growth))
            self.steps_at_length = 0

    def mastered(self, recipe: Any) -> bool:
        """Return whether the accuracy is above the threshold."""
        return bool(self.accuracy > recipe.threshold and self.steps_at_length > LEAST_STEPS)

    def warm_up(self) -> float:
        """Return the warm-up factor of the learning rates."""
        return min(1.0, (self.step + 1) / WARM_UP)

    @abstractmethod
    def rate(self, recipe: Any) -> float:
        """Return the factor of the learning rates."""

    @abstractmethod
    def finished(self, recipe: Any) -> bool:
        """Return whether all steps are done."""


#: Share of the steps, where their number is fixed, in which the learning rate is constant.
CONSTANT = 0.5

#: Accuracy at the training length from which a task counts as learned.
LEARNED = 0.95


@dataclass
class FixedCurriculum(Curriculum):
    """A curriculum of recipe.steps steps, in which accuracy alone makes lengths grow.

    The running accuracy starts at 0 at each length, so that it does not include shorter ones.

    Attributes:
        learned_at: number of steps after which the running accuracy at the training length was
            first at least `LEARNED`; None if it never was.
    """

    learned_at: int | None = None

    def advance(self, recipe: Any) -> None:
        """Count a step, note whether the task is learned, and grow the length if it is mastered."""
        length = self.length
        super().advance(recipe)
        learned = length == recipe.train_length and self.accuracy >= LEARNED
        if learned and self.learned_at is None:
            self.learned_at = self.step
        if self.length > length:
            self.accuracy = 0.0

    def rate(self, recipe: Any) -> float:
        """Return the factor of the learning rates: warm-up, constant, then falling to 2 %."""
        falling: float = max(0.0, self.step / recipe.steps - CONSTANT) / (1.0 - CONSTANT)
        return self.warm_up() * (1.0 - 0.98 * falling)

    def finished(self, recipe: Any) -> bool:
        """Return whether all steps are done."""
        return self.step >= int(recipe.steps)


class Training(ABC):
    """Base class of trainings, which can stop after any step and resume later.

    Args:
        recipe: settings of the training.
        curriculum: a curriculum in its initial state.

    Attributes:
        model: the model in training.
    """

    def __init__(self, recipe: Recipe, curriculum: Curriculum) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe: Any = recipe
        self.curriculum: Any = curriculum
        self.model = self.make_model()
        self.optimizers = self.make_optimizers()
        self._rates = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        self.rng = np.random.default_rng(recipe.seed)

    @abstractmethod
    def make_model(self) -> Any:
        """Build the model with random first weights; torch is already seeded."""

    @abstractmethod
    def batch(self) -> Batch:
        """Draw a batch of texts of the current length from `self.rng`."""

    def logits(self, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Compute the model's logits at some positions; a `Decoder` computes no others.

        Args:
            tokens: (rows, length) int64.
            wanted: positions that need logits, bool (rows, length).

        Returns:
            (wanted positions, vocabulary).
        """
        logits: torch.Tensor = self.model(tokens, wanted)
        return logits

    def make_optimizers(self) -> list[torch.optim.Optimizer]:
        """Make Muon for the matrices of the blocks and AdamW for all other parameters."""
        matrices, others = parameter_groups(self.model)
        return [
            torch.optim.Muon(matrices, lr=self.recipe.muon_rate, momentum=0.95, weight_decay=0.1),
            self.adam(others, self.recipe.adam_rate),
        ]

    def adam(self, parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
        """Make AdamW with the settings that all trainings share."""
        return torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)

    @property
    def finished(self) -> bool:
        """True once all steps are done."""
        done: bool = self.curriculum.finished(self.recipe)
        return done

    def step(self) -> float:
        """Train on one batch, measure the time, and return the loss."""
        wall, cpu = time.perf_counter(), time.process_time()
        batch = self.batch()
        rate = self.curriculum.rate(self.recipe)
        for optimizer, rates in zip(self.optimizers, self._rates, strict=True):
            for group, full in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = full * rate
            optimizer.zero_grad()
        counted = batch.weights > 0
        expected = batch.expected[counted]
        logits = self.logits(batch.tokens, counted)
        nats = F.cross_entropy(logits, expected, reduction="none")
        loss = (nats * batch.weights[counted]).sum() / batch.weights.sum()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self.note_accuracy(logits.argmax(-1) == expected, batch.answers[counted])
        self.curriculum.advance(self.recipe)
        self.curriculum.wall_seconds += time.perf_counter() - wall
        self.curriculum.cpu_seconds += time.process_time() - cpu
        return loss.item()

    def note_accuracy(self, right: torch.Tensor, answers: torch.Tensor) -> None:
        """Update the running accuracy by the answers' tokens of a batch."""
        if answers.any():
            now = float(right[answers].float().mean())
            self.curriculum.accuracy = 0.9 * self.curriculum.accuracy + 0.1 * now

    def save(self, path: Path) -> None:
        """Write a checkpoint in place of an earlier one."""
        state = {
            "recipe": asdict(self.recipe),
            "curriculum": asdict(self.curriculum),
            "rng": self.rng.bit_generator.state,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        with _files.replacing(path) as file:
            torch.save(state, file)

    def load(self, path: Path) -> None:
        """Restore the state of a checkpoint.

        Raises:
            ValueError: the checkpoint belongs to another recipe, or is damaged.
        """
        expected = "a checkpoint of a training; remove it to start again"
        with _files.readable(expected, path):
            state = torch.load(path, weights_only=True)
            made_by = state["recipe"]
        if made_by != asdict(self.recipe):
            raise ValueError(
                f"{path} must be a checkpoint of {self.recipe}, got one of {made_by}; "
                "choose another folder or remove it"
            )
        with _files.readable(expected, path):
            self.curriculum = type(self.curriculum)(**state["curriculum"])
            self.rng.bit_generator.state = state["rng"]
            self.model.load_state_dict(state["model"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)

    def run(self, folder: Path, report: Callable[[str], None] = lambda _: None) -> None:
        """Run all steps, starting from the checkpoint in a folder if it has one.

        Args:
            folder: folder that is made for the checkpoint, which is written every
                CHECKPOINT_SECONDS and at the end, and for a log in JSON lines, with one line every
                LOG_STEPS steps.
            report: function that receives one line of text after each step.
        """
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint = folder / CHECKPOINT
        if checkpoint.exists():
            self.load(checkpoint)
        saved = time.monotonic()
        while not self.finished:
            loss = self.step()
            state = self.curriculum
            report(
                f"step {state.step}, length {state.length}, loss {loss:.2f}, "
                f"right {state.accuracy:.2f}"
            )
            if state.step % LOG_STEPS == 0:
                with (folder / LOG).open("a") as file:
                    file.write(json.dumps({"loss": loss, **asdict(state)}) + "\n")
            if self.finished or time.monotonic() - saved > CHECKPOINT_SECONDS:
                self.save(checkpoint)
                saved = time.monotonic()


#: Ends of the names of token embeddings in the models.
_EMBEDDINGS = ("word_embeddings.weight", "wte.weight")


def parameter_groups(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the matrices of the blocks, and all other parameters except position schemes'."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if ".positions." in name:
            continue
        inside = parameter.ndim == 2 and not name.endswith(_EMBEDDINGS)
        (matrices if inside else others).append(parameter)
    return matrices, others

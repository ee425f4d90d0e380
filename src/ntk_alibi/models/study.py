"""How far position schemes reach beyond their training length: `python -m ntk_alibi.models.study`.

Trains one small decoder with each scheme, several seeds each, on the same data and the same number
of tokens; then has it read records of lines and prose of one to eight training lengths, as it was
trained and with what is said to help. Every training goes on from its checkpoint, every evaluation
from its journal, so that whoever interrupts loses half a minute at most.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from ntk_alibi._runtime import info, set_num_threads
from ntk_alibi.evaluation import corpus
from ntk_alibi.evaluation.journal import Journal
from ntk_alibi.evaluation.tasks import Case, Lines
from ntk_alibi.models import training
from ntk_alibi.models.decoder import Decoder
from ntk_alibi.models.positions import SCHEMES, Place, View
from ntk_alibi.scaling import NTK, Interpolation

#: Questions about the lines of one record, in training at the full length and in the evaluation.
QUESTIONS = 8

#: Tokens that one forward pass of the evaluation reads.
BATCH_TOKENS = 8192


@dataclass(frozen=True)
class Recipe(training.Recipe):
    """All choices of a training; all schemes have the same but for the name.

    Attributes:
        scheme: one of `SCHEMES`.
        steps: of so many tokens each; the learning rate falls over the second half of them.
        position_rate: learning rate of what a scheme learns; few numbers, which have far to go.
        autocast: whether matrices are multiplied in bfloat16.
    """

    train_length: int = 256
    start_length: int = 96
    growth: float = 1.25
    tokens: int = 2048
    shares: tuple[float, float, float] = (0.2, 0.8, 0.0)
    scheme: str = "alibi"
    steps: int = 600
    position_rate: float = 0.02
    autocast: bool = True


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        multiples: of the training length.
        records: of lines, at each length.
        windows: of prose; in each the same tokens are predicted from one to so many lengths.
        seed: of the records, which are the same for all models.
    """

    multiples: tuple[int, ...] = (1, 2, 4, 8)
    records: int = 24
    windows: int = 24
    seed: int = 2026


@dataclass
class Curriculum(training.Curriculum):
    """Ends after a fixed number of steps; lengths that are not mastered grow in time all the same.

    Attributes:
        wall_seconds, cpu_seconds: in training steps so far.
    """

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def overdue(self, recipe: Recipe) -> bool:
        """Whether the second half of the steps begins, which has the training length for all."""
        return self.step >= recipe.steps // 2

    def rate(self, recipe: Recipe) -> float:
        """Factor of the learning rates: warm-up, constant, falling to 2 %."""
        half = recipe.steps / 2
        return self.warm_up() * (1.0 - 0.98 * max(0.0, (self.step - half) / half))

    def finished(self, recipe: Recipe) -> bool:
        """Whether all steps are done."""
        return self.step >= recipe.steps


class Training(training.Training):
    """Of a decoder with one scheme.

    Args:
        recipe: what to do.
    """

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe, Curriculum(recipe.start_length))

    def make_model(self) -> Decoder:
        """A decoder with its first weights."""
        recipe = self.recipe
        place = Place(recipe.heads, recipe.hidden_size, recipe.train_length)
        return Decoder(
            len(self.tokenizer),
            recipe.layers,
            recipe.hidden_size,
            recipe.heads,
            partial(SCHEMES[recipe.scheme], place),
            autocast=recipe.autocast,
        )

    def make_optimizers(self) -> list[torch.optim.Optimizer]:
        """As all trainings, and another AdamW for what the scheme learns."""
        own = {
            parameter
            for layer in self.model.layers
            for parameter in layer.positions.parameters()
            if parameter.requires_grad
        }
        matrices, others = training.parameter_groups(self.model)
        optimizers = self.optimizers_of(
            [p for p in matrices if p not in own], [p for p in others if p not in own]
        )
        if own:
            ordered = [p for p in self.model.parameters() if p in own]
            rate = self.recipe.position_rate
            optimizers.append(torch.optim.AdamW(ordered, lr=rate, betas=(0.9, 0.98), weight_decay=0.0))
        return optimizers

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Of the model: (rows, length) to (rows, length, vocabulary)."""
        logits: torch.Tensor = self.model(tokens)
        return logits

    def line_questions(self, length: int) -> int:
        """So many that the shortest records have one line, and the longest mostly lines."""
        return max(1, min(length // 18, QUESTIONS))

    def step(self) -> float:
        """One step on one batch; the loss."""
        wall, cpu = time.perf_counter(), time.process_time()
        loss = super().step()
        self.curriculum.wall_seconds += time.perf_counter() - wall
        self.curriculum.cpu_seconds += time.process_time() - cpu
        return loss

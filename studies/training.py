"""Training of small language models from scratch on retrieval records and prose.

The base classes here are independent of the model. nano_bloom/ trains the embedded BLOOM with
them, and schemes/recipe.py trains decoders with different position schemes. Three choices let
small models learn within minutes on two cores:

- a curriculum of lengths: records start with a line or two and grow by half whenever the running
  accuracy of the answers passes a threshold;
- Muon for the matrices of the blocks, AdamW for all other parameters;
- a loss with weight 1 for answers, a half for prose, and a tenth for the rest of records, which is
  unpredictable.

A training can stop after any step. When it resumes from its checkpoint it reaches the same weights.
"""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from ntk_alibi import _files
from ntk_alibi.evaluation.records import corpus
from ntk_alibi.evaluation.records.haystacks import MultiKey, Passkey
from ntk_alibi.evaluation.records.longeval import Lines, Topics
from ntk_alibi.evaluation.records.record import Case, Encode, RecordKind, cached_encoder, encoder
from ntk_alibi.evaluation.records.words import LINE_NAMES
from studies.tokenizer import SPECIAL_TOKENS, build_tokenizer


@dataclass(frozen=True)
class Recipe:
    """Settings that every training has.

    Attributes:
        train_length: training length in tokens, at which the last phase trains.
        start_length: first length of the curriculum in tokens.
        threshold: running accuracy on lines above which the length grows.
        growth: factor by which the length grows.
        tokens: tokens in a step at lengths below 1000; twice as many at greater lengths.
        layers, hidden_size, heads: shape of the model.
        shares: shares of prose and of the kinds of records in `KINDS`, in their order, in the rows
            of a batch; missing ones are 0.
        muon_rate, adam_rate: learning rates of Muon and AdamW.
        record_weight: weight in the loss of record tokens that are not answers; answers have 1.
        seed: seed of the first weights and of the data.
        held_out: texts of the corpus that are not trained on; see `corpus.training_text`.
    """

    train_length: int = 2048
    start_length: int = 64
    threshold: float = 0.7
    growth: float = 1.5
    tokens: int = 4096
    layers: int = 3
    hidden_size: int = 128
    heads: int = 8
    shares: tuple[float, ...] = (0.3, 0.5, 0.2)
    muon_rate: float = 0.02
    adam_rate: float = 2e-3
    record_weight: float = 0.1
    seed: int = 0
    held_out: Literal["chapters", "books"] = "chapters"


#: Weight of prose in the loss; answers have 1.
PROSE_WEIGHT = 0.5

#: Kinds of records; their places mark answers in a batch. The last are lines whose names are pairs
#: of words of the training text.
KINDS = ("prose", "lines", "topics", "passkey", "multikey", "word-lines")
_LINES, _TOPICS = KINDS.index("lines"), KINDS.index("topics")

#: Lengths in tokens below which a kind's rows are lines instead.
SHORTEST = (0, 0, 0, 128, 128, 128)

#: Letters of a word in the names of word-lines.
WORD_LETTERS = range(4, 9)

#: Number of warm-up steps, and number of steps at a length before it can grow.
WARM_UP, LEAST_STEPS = 60, 10

CHECKPOINT_SECONDS = 30.0
LOG_STEPS = 25


@dataclass
class Curriculum(ABC):
    """Progress of a training, without weights, optimizers and the random generator.

    Attributes:
        length: current length in tokens.
        step: steps done.
        steps_at_length: steps done at the current length.
        lines_accuracy, topics_accuracy: running accuracies of the answers' tokens.
    """

    length: int
    step: int = 0
    steps_at_length: int = 0
    lines_accuracy: float = 0.0
    topics_accuracy: float = 0.0

    def advance(self, recipe: Any) -> None:
        """Count a step, and grow the length if the accuracy on lines is above the threshold."""
        self.step += 1
        self.steps_at_length += 1
        mastered = self.lines_accuracy > recipe.threshold and self.steps_at_length > LEAST_STEPS
        if self.length < recipe.train_length and mastered:
            self.length = min(recipe.train_length, int(self.length * recipe.growth))
            self.steps_at_length = 0

    def warm_up(self) -> float:
        """Return the warm-up factor of the learning rates."""
        return min(1.0, (self.step + 1) / WARM_UP)

    @abstractmethod
    def rate(self, recipe: Any) -> float:
        """Return the factor of the learning rates."""

    @abstractmethod
    def finished(self, recipe: Any) -> bool:
        """Return whether all steps are done."""


class Training(ABC):
    """Base class of trainings, which can stop after any step and resume later.

    Args:
        recipe: settings of the training.
        curriculum: a curriculum in its initial state.

    Attributes:
        model: the model in training.
        tokenizer: the model's tokenizer.
    """

    def __init__(self, recipe: Recipe, curriculum: Curriculum) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe: Any = recipe
        self.curriculum: Any = curriculum
        text = _text(recipe.held_out)
        self.tokenizer, self.encode = text.tokenizer, text.encode
        self._sentences, self._prose = text.sentences, text.prose
        self.model = self.make_model()
        self.optimizers = self.make_optimizers()
        self._rates = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        self.rng = np.random.default_rng(recipe.seed)

    @abstractmethod
    def make_model(self) -> Any:
        """Build the model with random first weights; torch is already seeded."""

    @abstractmethod
    def logits(self, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Compute the model's logits at some positions.

        Args:
            tokens: (rows, length) int64.
            wanted: positions that need logits, bool (rows, length).

        Returns:
            (number of those positions, vocabulary).
        """

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
        """Train on one batch and return the loss."""
        tokens, weights, answers = self._batch()
        rate = self.curriculum.rate(self.recipe)
        for optimizer, rates in zip(self.optimizers, self._rates, strict=True):
            for group, full in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = full * rate
            optimizer.zero_grad()
        counted = weights[:, 1:] > 0
        expected = tokens[:, 1:][counted]
        logits = self.logits(tokens[:, :-1], counted)
        nats = F.cross_entropy(logits, expected, reduction="none")
        loss = (nats * weights[:, 1:][counted]).sum() / weights.sum()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self.note_accuracy(logits.argmax(-1) == expected, answers[:, 1:][counted])
        self.curriculum.advance(self.recipe)
        return loss.item()

    def note_accuracy(self, right: torch.Tensor, answers: torch.Tensor) -> None:
        """Update the running accuracies by the answers' tokens of a batch."""
        for name, kind in (("lines_accuracy", _LINES), ("topics_accuracy", _TOPICS)):
            of_kind = answers == kind
            if of_kind.any():
                now = float(right[of_kind].float().mean())
                before = getattr(self.curriculum, name)
                setattr(self.curriculum, name, 0.9 * before + 0.1 * now)

    def _batch(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draw a batch: tokens, loss weights and marks of the answers, each (rows, length)."""
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
        kind = self.rng.choice(len(self.recipe.shares), p=self.recipe.shares)
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
        questions = max(1, min(8, length // 100))
        kinds: dict[str, Callable[[], RecordKind]] = {
            "lines": lambda: self.line_task(length),
            "topics": lambda: Topics(self._sentences, questions, ask_any=True),
            "passkey": lambda: Passkey(self._sentences),
            "multikey": lambda: MultiKey(self._sentences, questions, keys=max(1, length // 80)),
            "word-lines": lambda: Lines(questions, names=self._word_names),
        }
        name = KINDS[kind] if length >= SHORTEST[kind] else "lines"
        return kinds[name]().case(self.encode, length, self.rng)

    @cached_property
    def _word_names(self) -> tuple[str, ...]:
        """Pairs of words of the training text, as many as there are names of lines."""
        found = set(re.findall(r"\b[a-z]+\b", " ".join(self._sentences)))
        words = sorted(word for word in found if len(word) in WORD_LETTERS)
        pairs = np.random.default_rng(self.recipe.seed).choice(words, (len(LINE_NAMES), 2))
        return tuple(dict.fromkeys(map("-".join, pairs)))

    def line_task(self, length: int) -> RecordKind:
        """Return the kind of the records of lines with `length` tokens."""
        return Lines(max(1, min(length // 30, max(16, length // 64))))

    def save(self, path: Path) -> None:
        """Write a checkpoint atomically."""
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

    def run(
        self, checkpoint: Path, log: Path, report: Callable[[str], None] = lambda _: None
    ) -> None:
        """Run all steps, starting from the checkpoint if it exists.

        Args:
            checkpoint: path of the checkpoint, which is written every CHECKPOINT_SECONDS and kept.
            log: path of a log in JSON lines, with one line every LOG_STEPS steps.
            report: function that receives one line of text after each step.
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


#: Ends of the names of token embeddings in the models.
_EMBEDDINGS = ("word_embeddings.weight", "wte.weight")


def parameter_groups(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the matrices of the blocks, and all others but those of position schemes."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if ".positions." in name:
            continue
        inside = parameter.ndim == 2 and not name.endswith(_EMBEDDINGS)
        (matrices if inside else others).append(parameter)
    return matrices, others


@dataclass(frozen=True)
class _Text:
    """The training text and the tokenizer."""

    tokenizer: Any
    encode: Encode
    sentences: tuple[str, ...]
    prose: NDArray[np.int64]


@cache
def _text(held_out: str) -> _Text:
    """Prepare tokenizer and text, which takes seconds and is deterministic."""
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(),
        **SPECIAL_TOKENS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    encode = cached_encoder(encoder(tokenizer))
    text = corpus.training_text(held_out)
    chapters = encode([chapter + "\n" for chapter in text])
    prose = np.concatenate([np.array(chapter, np.int64) for chapter in chapters])
    return _Text(tokenizer, encode, corpus.sentences(text), prose)

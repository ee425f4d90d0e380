"""The trainings of the study: their settings, records, curriculum and end.

A record is a list of names, each with a number, and then some of the names again as questions. It
is the shortest form of the records in evaluation/records: a name is one token. A model that trains
for a few minutes should learn to look up the number that followed the same name, and nothing else.
With names of two tokens many models match the second token alone, which gives seven of eight
answers at the training length, and stop there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch

from ntk_alibi.evaluation.records.record import Case, Encode
from studies.record_training import RecordRecipe, RecordTraining
from studies.schemes.decoder import FIRST_WEIGHTS_STD, Decoder
from studies.schemes.schemes import SCHEMES, LayerShape
from studies.training import FixedCurriculum

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Tokens of a line (name, number, end of line) with the tokenizer of the nano models.
LINE_TOKENS = 3

#: Number of questions about a record.
QUESTIONS = 16


def one_token_names(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Return the words of two or more lower-case letters that are one token after a space."""
    texts = {str(tokenizer.decode([token])) for token in range(len(tokenizer))}
    return tuple(sorted(x for x in texts if x[0:1] == " " and len(x) > 2 and _is_word(x[1:])))


def _is_word(text: str) -> bool:
    return text.isascii() and text.isalpha() and text.islower()


@dataclass(frozen=True)
class Pairs:
    """Records of lines with a name and a number each, and questions for some of the numbers.

    The names of the questions are drawn uniformly and without replacement, so that the distances
    spread over the whole record.

    Attributes:
        questions: number of questions in a case; at most half of the lines are questions.
        names: names of the lines, each of one token; a record uses each at most once.
    """

    questions: int
    names: tuple[str, ...] = field(repr=False)
    name: ClassVar[str] = "pairs"

    def case(self, encode: Encode, length: int, rng: np.random.Generator) -> Case:
        """Draw a case; see `RecordKind`."""
        lines = length // LINE_TOKENS
        questions = min(self.questions, lines // 2)
        stated = lines - questions
        if questions < 1 or stated > len(self.names):
            raise ValueError(
                f"length must be from {2 * LINE_TOKENS} tokens to the length of "
                f"{len(self.names)} names, got {length}"
            )
        names = [self.names[i] for i in rng.choice(len(self.names), stated, replace=False)]
        numbers = [f"{number:02d}" for number in rng.integers(100, size=stated)]
        asked_lines = rng.choice(stated, questions, replace=False)
        end = encode(["\n"])[0]
        tokens: list[int] = []
        places: list[int] = []
        for i in [*range(stated), *asked_lines]:
            name, number = encode([names[i], numbers[i]])
            tokens += name
            places.append(len(tokens))
            tokens += [*number, *end]
        answers = places[stated:]
        return Case(
            np.array(tokens, np.int64),
            [(place, place + 1) for place in answers],
            [place - places[i] for place, i in zip(answers, asked_lines, strict=True)],
        )


@dataclass(frozen=True)
class StudyRecipe(RecordRecipe):
    """All settings of a training.

    Except for `scheme`, `muon_rate` and `first_weights_std` they are the same for all schemes.

    Attributes:
        scheme: name of the position scheme, a key of `SCHEMES`.
        steps: number of steps; the learning rate falls in the second half of them.
        first_weights_std: standard deviation of the first weights.
        position_rate: learning rate of the scheme's parameters; it is high because they are few and
            start far from their final values.
        autocast: whether matrices are multiplied in bfloat16.
        until_learned: whether the training ends as soon as the task is learned.
    """

    train_length: int = 128
    start_length: int = 32
    threshold: float = 0.8
    tokens: int = 2048
    prose: float = 0.15
    adam_rate: float = 5e-3
    record_weight: float = 0.0
    held_out: Literal["chapters", "books"] = "books"
    scheme: str = "alibi"
    steps: int = 1000
    first_weights_std: float = FIRST_WEIGHTS_STD
    position_rate: float = 0.02
    autocast: bool = True
    until_learned: bool = False


@dataclass
class StudyCurriculum(FixedCurriculum):
    """A curriculum that can end as soon as the task is learned."""

    def finished(self, recipe: StudyRecipe) -> bool:
        """Return whether all steps are done, or the task is learned where that ends a training."""
        learned = recipe.until_learned and self.learned_at is not None
        return learned or super().finished(recipe)


class StudyTraining(RecordTraining):
    """The training of a decoder with one position scheme.

    Args:
        recipe: settings of the training.
    """

    def __init__(self, recipe: StudyRecipe) -> None:
        super().__init__(recipe, StudyCurriculum(recipe.start_length))

    def make_model(self) -> Decoder:
        """Build a decoder with random first weights."""
        recipe = self.recipe
        place = LayerShape(recipe.heads, recipe.hidden_size, recipe.train_length)
        return Decoder(
            len(self.tokenizer),
            recipe.layers,
            recipe.hidden_size,
            recipe.heads,
            partial(SCHEMES[recipe.scheme], place),
            autocast=recipe.autocast,
            first_weights_std=recipe.first_weights_std,
        )

    def make_optimizers(self) -> list[torch.optim.Optimizer]:
        """Make the optimizers of all trainings, and an AdamW for the scheme's parameters."""
        learned = [p for name, p in self.model.named_parameters() if ".positions." in name]
        more = [self.adam(learned, self.recipe.position_rate)] if learned else []
        return [*super().make_optimizers(), *more]

    def record_kind(self, length: int) -> Pairs:
        """Return the kind of the study's records."""
        return Pairs(QUESTIONS, self._names)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return one_token_names(self.tokenizer)

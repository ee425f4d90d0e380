"""Training of small language models on retrieval records and prose.

nano_bloom/ trains the embedded BLOOM with the classes here, and schemes/recipe.py trains decoders
with different position schemes. The first token of an answer, which must be found, weighs most in
the loss; the rest of records is unpredictable.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from ntk_alibi.evaluation.records import corpus
from ntk_alibi.evaluation.records.record import Encode, RecordKind, cached_encoder, encoder
from studies import training
from studies.tokenizer import SPECIAL_TOKENS, build_tokenizer


@dataclass(frozen=True)
class RecordRecipe(training.Recipe):
    """Settings that every training on records and prose has.

    Attributes:
        prose: share of prose in the rows of a batch; the others are records.
        prose_weight, record_weight, first_weight: weights in the loss of prose, of record tokens
            that are not answers, and of the first token of an answer; its other tokens, which are
            easier, have 1.
        held_out: texts of the corpus that are not used for training; see `corpus.training_text`.
    """

    prose: float = 0.25
    prose_weight: float = 0.5
    record_weight: float = 0.1
    first_weight: float = 1.0
    held_out: Literal["chapters", "books"] = "chapters"


class RecordTraining(training.Training):
    """Base class of trainings on records and prose.

    Args:
        recipe: settings of the training.
        curriculum: a curriculum in its initial state.

    Attributes:
        tokenizer: the model's tokenizer.
    """

    def __init__(self, recipe: RecordRecipe, curriculum: training.Curriculum) -> None:
        text = _text(recipe.held_out)
        self.tokenizer, self.encode = text.tokenizer, text.encode
        self.sentences, self._prose = text.sentences, text.prose
        super().__init__(recipe, curriculum)

    def batch(self) -> training.Batch:
        """Draw a batch, in which each position expects the token after it; see `Training`."""
        length = self.curriculum.length
        rows = [self._row(length) for _ in range(self.recipe.rows(length))]
        parts = zip(*rows, strict=True)
        tokens, weights, answers = (torch.from_numpy(np.stack(part)) for part in parts)
        return training.Batch(tokens[:, :-1], tokens[:, 1:], weights[:, 1:], answers[:, 1:])

    def _row(self, length: int) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.bool_]]:
        tokens = np.full(length, self.tokenizer.pad_token_id, np.int64)
        weights = np.zeros(length, np.float32)
        answers = np.zeros(length, bool)
        if self.rng.random() < self.recipe.prose:
            begin = int(self.rng.integers(len(self._prose) - length))
            tokens[:] = self._prose[begin : begin + length]
            weights[:] = self.recipe.prose_weight
            return tokens, weights, answers
        case = self.record_kind(length).case(self.encode, length, self.rng)
        tokens[: len(case.tokens)] = case.tokens
        weights[: len(case.tokens)] = self.recipe.record_weight
        for begin, end in case.answers:
            weights[begin], weights[begin + 1 : end] = self.recipe.first_weight, 1.0
            answers[begin] = True
        return tokens, weights, answers

    @abstractmethod
    def record_kind(self, length: int) -> RecordKind:
        """Return the kind of records with `length` tokens."""


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

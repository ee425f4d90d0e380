"""Training of small language models on retrieval records and prose.

nano_bloom/ trains the embedded BLOOM with the classes here, and schemes/recipe.py trains decoders
with different position schemes. The loss has weight 1 for answers, a half for prose, and a tenth
for the rest of records, which is unpredictable.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from ntk_alibi.evaluation.records import corpus
from ntk_alibi.evaluation.records.haystacks import MultiKey, Passkey
from ntk_alibi.evaluation.records.longeval import Lines, Topics
from ntk_alibi.evaluation.records.record import Case, Encode, RecordKind, cached_encoder, encoder
from ntk_alibi.evaluation.records.words import LINE_NAMES
from studies import training
from studies.tokenizer import SPECIAL_TOKENS, build_tokenizer


@dataclass(frozen=True)
class RecordRecipe(training.Recipe):
    """Settings that every training on records and prose has.

    Attributes:
        shares: the shares of `KINDS`, in their order, in the rows of a batch; missing ones are 0.
        record_weight: weight in the loss of record tokens that are not answers; answers have 1.
        held_out: texts of the corpus that are not used for training; see `corpus.training_text`.
    """

    shares: tuple[float, ...] = (0.3, 0.5, 0.2)
    record_weight: float = 0.1
    held_out: Literal["chapters", "books"] = "chapters"


#: Weight of prose in the loss; answers have 1.
PROSE_WEIGHT = 0.5

#: Kinds of rows; lines and topics have the indices `training.LINES` and `TOPICS`. In word-lines the
#: names are pairs of words of the training text.
KINDS = ("prose", "lines", "topics", "passkey", "multikey", "word-lines")

#: Rows that are shorter than this, in tokens, are lines in place of their kind.
SHORTEST = (0, 0, 0, 128, 128, 128)

#: Letters of a word in the names of word-lines.
WORD_LETTERS = range(4, 9)


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
        self._sentences, self._prose = text.sentences, text.prose
        super().__init__(recipe, curriculum)

    def batch(self) -> training.Batch:
        """Draw a batch, in which each position expects the token after it; see `Training`."""
        length = self.curriculum.length
        rows = [self._row(length) for _ in range(self.recipe.rows(length))]
        parts = zip(*rows, strict=True)
        tokens, weights, answers = (torch.from_numpy(np.stack(part)) for part in parts)
        return training.Batch(tokens[:, :-1], tokens[:, 1:], weights[:, 1:], answers[:, 1:])

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
        """Return the kind of record for lines with `length` tokens."""
        return Lines(max(1, min(length // 30, max(16, length // 64))))


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

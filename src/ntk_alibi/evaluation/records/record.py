"""Retrieval tasks in the manner of LongEval, made for any tokenizer and any length.

A case is one record followed by several questions about it, each with its answer. The model reads
all of it at once; it has answered a question if its most likely token is right at every token of
the answer. That is what greedy decoding of this question would give, since a wrong token before
would have ended it, and it costs one forward pass for all questions. Later questions see earlier
answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Encode = Callable[[list[str]], list[list[int]]]


@dataclass(frozen=True)
class Case:
    """A record and the questions about it.

    Attributes:
        tokens: all of it, (length,) int64.
        answers: (begin, end) of each answer in tokens.
        distances: tokens from what each answer repeats to the answer.
    """

    tokens: NDArray[np.int64]
    answers: list[tuple[int, int]]
    distances: list[int]


class RecordKind(Protocol):
    """A kind of record."""

    @property
    def name(self) -> str:
        """In tables."""
        ...

    def case(self, encode: Encode, length: int, rng: np.random.Generator) -> Case:
        """A case of at most, and nearly, length tokens.

        Raises:
            ValueError: length does not hold a record and the questions.
        """
        ...


class Builder:
    """Joins pieces of text into a case; pieces are encoded one by one."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._tokens: list[int] = []
        self._answers: list[tuple[int, int]] = []
        self._distances: list[int] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, tokens: Sequence[int]) -> int:
        """Append tokens; where they begin."""
        begin = len(self._tokens)
        self._tokens.extend(tokens)
        return begin

    def ask(self, question: str, answer: str, end: str, source: int) -> None:
        """Append a question and its answer, which stands at token `source` of the record."""
        asked, answered, ended = self._encode([question, answer, end])
        self.add(asked)
        begin = self.add(answered)
        self._answers.append((begin, begin + len(answered)))
        self._distances.append(begin - source)
        self.add(ended)

    def case(self) -> Case:
        """What was built."""
        return Case(np.array(self._tokens, np.int64), self._answers, self._distances)


def filler(
    encode: Encode, prose: Sequence[str], length: int, rng: np.random.Generator
) -> list[int]:
    """So many tokens of running prose, from a sentence drawn at random."""
    tokens: list[int] = []
    sentence = int(rng.integers(len(prose)))
    while len(tokens) < length:
        tokens += encode([" " + prose[sentence % len(prose)]])[0]
        sentence += 1
    return tokens[:length]


def cached_encoder(encode: Encode) -> Encode:
    """The same encoder, asked only once for each piece of text: records repeat theirs."""
    known: dict[str, list[int]] = {}

    def encode_cached(texts: list[str]) -> list[list[int]]:
        if new := [text for text in texts if text not in known]:
            known.update(zip(new, encode(new), strict=True))
        return [known[text] for text in texts]

    return encode_cached


def check_room(room: int, task: str, length: int) -> None:
    """That a record fits."""
    if room < 1:
        raise ValueError(f"length must hold a record of {task} and its questions, got {length}")


Decode = Callable[[Any], str]


def encoder(tokenizer: PreTrainedTokenizerBase) -> Encode:
    """How a transformers tokenizer encodes pieces of text."""

    def encode(texts: list[str]) -> list[list[int]]:
        tokens: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
        return tokens

    return encode


def decoder(tokenizer: PreTrainedTokenizerBase) -> Decode:
    """How it decodes tokens, without beautifying."""

    def decode(tokens: Any) -> str:
        return str(tokenizer.decode(tokens, clean_up_tokenization_spaces=False))

    return decode

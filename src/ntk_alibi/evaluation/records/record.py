"""Cases and kinds of records for retrieval, for any tokenizer and any length.

As in LongEval, a case is one record followed by several questions about it, each with its answer.
The model reads a case in one forward pass. It has answered a question if its most likely token is
right at every token of the answer. Greedy decoding of the question gives the same result, because
up to its first wrong token it has the same input. Later questions see the right answers to the
earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _checks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Encode = Callable[[list[str]], list[list[int]]]
Decode = Callable[[Any], str]


@dataclass(frozen=True)
class Case:
    """A record and the questions about it.

    Attributes:
        tokens: tokens of the record, the questions and the answers, (length,) int64.
        answers: (begin, end) of each answer in tokens.
        distances: for each answer, the number of tokens from its first statement in the record to
            the answer.
    """

    tokens: NDArray[np.int64]
    answers: list[tuple[int, int]]
    distances: list[int]


class RecordKind(Protocol):
    """A kind of record, which can draw cases."""

    @property
    def name(self) -> str:
        """Name of the kind in error messages."""
        ...

    def case(self, encode: Encode, length: int, rng: np.random.Generator) -> Case:
        """Draw a case of at most, and nearly, length tokens.

        Raises:
            ValueError: length is too small for a record and the questions.
        """
        ...


class Builder:
    """A builder that joins pieces of text into a case; each piece is encoded by itself."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._tokens: list[int] = []
        self._answers: list[tuple[int, int]] = []
        self._distances: list[int] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, tokens: Sequence[int]) -> int:
        """Append tokens and return the index of the first."""
        begin = len(self._tokens)
        self._tokens.extend(tokens)
        return begin

    def ask(self, question: str, answer: str, end: str, source: int) -> None:
        """Append a question and its answer, which the record states at token `source`."""
        question_tokens, answer_tokens, end_tokens = self._encode([question, answer, end])
        self.add(question_tokens)
        begin = self.add(answer_tokens)
        self._answers.append((begin, begin + len(answer_tokens)))
        self._distances.append(begin - source)
        self.add(end_tokens)

    def case(self) -> Case:
        """Return the finished case."""
        return Case(np.array(self._tokens, np.int64), self._answers, self._distances)


def filler(
    encode: Encode, prose: Sequence[str], length: int, rng: np.random.Generator
) -> list[int]:
    """Return `length` tokens of running prose that start at a random sentence."""
    tokens: list[int] = []
    sentence = int(rng.integers(len(prose)))
    while len(tokens) < length:
        tokens += encode([" " + prose[sentence % len(prose)]])[0]
        sentence += 1
    return tokens[:length]


def cached_encoder(encode: Encode) -> Encode:
    """Wrap an encoder so that it encodes each piece of text once; records repeat many pieces."""
    known: dict[str, list[int]] = {}

    def encode_cached(texts: list[str]) -> list[list[int]]:
        if new := [text for text in texts if text not in known]:
            known.update(zip(new, encode(new), strict=True))
        return [known[text] for text in texts]

    return encode_cached


def check_room(room: int, kind: str, length: int) -> None:
    """Check that a record of a kind and its questions leave room in length."""
    if room < 1:
        raise ValueError(f"length must hold a record of {kind} and its questions, got {length}")


#: Tokens of one text, which takes about 100 bytes for each while it is made, and of all texts of a
#: task together, which take about 30 bytes for each: 4 GB for so many.
LONGEST_TEXT, MOST_TOKENS = 2**22, 2**27


def text_lengths(
    name: str,
    lengths: Iterable[Any],
    texts: int | Sequence[int],
    *,
    of: str = "records",
    minimum: int = 1,
) -> list[int]:
    """Return lengths in tokens, with so many texts of each, if all fit into memory.

    Args:
        name: name of the argument with the lengths.
        lengths: the lengths.
        texts: number of texts of each length, or one number for each length.
        of: name of the argument with the number of texts.
        minimum: least length.
    """
    numbers = [
        _checks.integer(name, length, minimum=minimum, maximum=LONGEST_TEXT) for length in lengths
    ]
    counts = of_each_length(of, texts, len(numbers))
    if (tokens := sum(n * count for n, count in zip(numbers, counts, strict=True))) > MOST_TOKENS:
        raise ValueError(
            f"{of} must have at most {MOST_TOKENS} tokens in all lengths together, got {texts} of "
            f"each length: {tokens} tokens"
        )
    return numbers


def of_each_length(
    name: str, counts: int | Sequence[int], lengths: int, *, minimum: int = 0
) -> list[int]:
    """Return a number of texts for each length: one number stands for all of them."""
    if not isinstance(counts, list | tuple):
        return [_checks.integer(name, counts, minimum=minimum)] * lengths
    if len(counts) != lengths:
        raise ValueError(
            f"{name} must be a number, or one for each of the {lengths} lengths, got {counts}"
        )
    return [_checks.integer(name, count, minimum=minimum) for count in counts]


def encoder(tokenizer: PreTrainedTokenizerBase) -> Encode:
    """Return a function that encodes pieces of text with a transformers tokenizer."""

    def encode(texts: list[str]) -> list[list[int]]:
        tokens: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
        return tokens

    return encode


def decoder(tokenizer: PreTrainedTokenizerBase) -> Decode:
    """Return a function that decodes tokens exactly, without cleaning up spaces."""

    def decode(tokens: Any) -> str:
        return str(tokenizer.decode(tokens, clean_up_tokenization_spaces=False))

    return decode

"""Cases and kinds of records for retrieval, for any tokenizer and any length.

As in LongEval, a case is a record followed by several questions about it, each with its answer. The
model reads a case in one pass, and has answered a question if its most likely token is right at
every token of the answer. Generating the answer greedily gives the same result, since the input is
the same up to the first wrong token. Later questions see the right answers to earlier ones.
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


#: The seed of records by default.
SEED = 2026

#: The name of a record, which seeds it, contains its length in this unit, for every model.
NAMED_UNIT = 2048

Encode = Callable[[list[str]], list[list[int]]]
Decode = Callable[[Any], str]


@dataclass(frozen=True)
class Case:
    """A record and the questions about it.

    Attributes:
        tokens: tokens of the record, the questions and the answers, (length,) int64.
        answers: (begin, end) of each answer in tokens.
        distances: for each answer, the number of tokens between it and the place in the record that
            states it.
    """

    tokens: NDArray[np.int64]
    answers: list[tuple[int, int]]
    distances: list[int]


class RecordKind(Protocol):
    """What draws records of one kind with questions: lines, topics, pass keys."""

    def case(self, encode: Encode, length: int, rng: np.random.Generator) -> Case:
        """Draw a case of length tokens, or a few less.

        Raises:
            ValueError: length is too small for a record and the questions.
        """
        ...


class Builder:
    """A case in the making: each string is encoded alone, and its tokens are appended."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._tokens: list[int] = []
        self._answers: list[tuple[int, int]] = []
        self._distances: list[int] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def room(self, length: int, sentences: Iterable[tuple[str, str, str]]) -> int:
        """Return how many tokens a case of length has left after these sentences."""
        texts = [text for sentence in sentences for text in sentence]
        return length - len(self) - sum(map(len, self._encode(texts)))

    def add(self, text: str) -> None:
        """Append a text."""
        self._tokens += self._encode([text])[0]

    def fill(self, prose: Sequence[str], length: int, rng: np.random.Generator) -> None:
        """Append `length` tokens of prose from a random sentence on."""
        end = len(self) + length
        sentence = int(rng.integers(len(prose)))
        while len(self) < end:
            self.add(" " + prose[sentence % len(prose)])
            sentence += 1
        del self._tokens[end:]

    def state(self, before: str, answer: str, after: str) -> tuple[int, int]:
        """Append a sentence with an answer, and return where the answer begins and ends."""
        ahead, said, behind = self._encode([before, answer, after])
        begin = len(self) + len(ahead)
        self._tokens += ahead + said + behind
        return begin, begin + len(said)

    def ask(self, question: str, answer: str, after: str, source: tuple[int, int]) -> None:
        """Append a question and its answer, which the record states at `source`."""
        place = self.state(question, answer, after)
        self._answers.append(place)
        self._distances.append(place[0] - source[0])

    def case(self) -> Case:
        """Return the finished case."""
        return Case(np.array(self._tokens, np.int64), self._answers, self._distances)


def answered(model: Any, case: Case) -> list[bool]:
    """Return for each question of a case whether the likeliest token is right at all its tokens."""
    import torch

    with torch.inference_mode():
        tokens, hidden = _read(model, case.tokens)
        head = model.get_output_embeddings()
        likeliest = (head(hidden[begin - 1 : end - 1]).argmax(-1) for begin, end in case.answers)
        return [
            bool((found == tokens[begin:end]).all())
            for found, (begin, end) in zip(likeliest, case.answers, strict=True)
        ]


#: Logits that are computed at a time: 128 MiB in float32.
LOGITS_AT_A_TIME = 2**25


def nats(model: Any, window: NDArray[np.int64], ranges: int) -> list[float]:
    """Return the mean nats per token in equal ranges of the positions of a text."""
    import torch
    from torch.nn import functional as F

    with torch.inference_mode():
        tokens, hidden = _read(model, window)
        head = model.get_output_embeddings()
        size = max(1, LOGITS_AT_A_TIME // model.config.vocab_size)
        lost = [
            F.cross_entropy(head(states).float(), expected, reduction="none")
            for states, expected in zip(hidden.split(size), tokens[1:].split(size), strict=True)
        ]
        return [float(part.mean()) for part in torch.cat(lost).double().tensor_split(ranges)]


def _read(model: Any, tokens: NDArray[np.int64]) -> tuple[Any, Any]:
    """Return tokens on the model's device, and the last hidden states of all but the last one."""
    import torch

    placed = torch.from_numpy(tokens).to(model.device)
    return placed, model.base_model(placed[None, :-1], use_cache=False)[0][0]


def cached_encoder(encode: Encode) -> Encode:
    """Return an encoder that encodes each string once; records repeat many strings."""
    encoded: dict[str, list[int]] = {}

    def encode_cached(texts: list[str]) -> list[list[int]]:
        if new := [text for text in texts if text not in encoded]:
            encoded.update(zip(new, encode(new), strict=True))
        return [encoded[text] for text in texts]

    return encode_cached


def check_room(room: int, kind: str, length: int) -> None:
    """Refuse a length that is too small for a record of a kind and its questions."""
    if room < 1:
        raise ValueError(f"length must hold a record of {kind} and its questions, got {length}")


#: Greatest number of tokens of one text (100 bytes for each while it is made), and of all texts of
#: a task (30 bytes for each: 4 GB).
LONGEST_TEXT, MOST_TOKENS = 2**22, 2**27


def check_lengths(
    name: str,
    lengths: Iterable[Any],
    texts: int,
    *,
    of: str = "records",
    minimum: int = 1,
) -> list[int]:
    """Return the lengths of texts in tokens, if all the texts fit into memory.

    Args:
        name: the argument with the lengths.
        lengths: the lengths.
        texts: how many texts there are of each length.
        of: the argument with texts.
        minimum: the least length.
    """
    checked = [
        _checks.integer(name, length, minimum=minimum, maximum=LONGEST_TEXT) for length in lengths
    ]
    _checks.integer(of, texts, minimum=0)
    if (tokens := sum(checked) * texts) > MOST_TOKENS:
        raise ValueError(
            f"{of} must have at most {MOST_TOKENS} tokens in all lengths together, got {texts} of "
            f"each length: {tokens} tokens"
        )
    return checked


def record_generator(kind: str, length: int, record: int, seed: int = SEED) -> np.random.Generator:
    """Return the generator that draws a record; its number and its length say which one."""
    name = f"{kind}/{length / NAMED_UNIT:g}/{record}"
    return np.random.default_rng([seed, *name.encode()])


def encoder(tokenizer: PreTrainedTokenizerBase) -> Encode:
    """Return a function that encodes strings with a tokenizer of transformers."""
    return lambda texts: tokenizer(texts, add_special_tokens=False)["input_ids"]


def decoder(tokenizer: PreTrainedTokenizerBase) -> Decode:
    """Return a function that decodes tokens exactly, spaces included."""
    return lambda tokens: str(tokenizer.decode(tokens, clean_up_tokenization_spaces=False))

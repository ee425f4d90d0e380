"""Tokens of a transformers tokenizer, and prose cut into windows of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi.evaluation.tasks import Encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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


def prose_windows(
    encode: Encode, chapters: list[str], length: int, count: int
) -> list[NDArray[np.int64]]:
    """The first `count` windows of `length` tokens of running prose.

    Raises:
        ValueError: the prose has fewer.
    """
    tokens = np.array([t for chapter in encode(chapters) for t in chapter], np.int64)
    if len(tokens) < count * length:
        raise ValueError(f"prose must hold {count} windows of {length} tokens, has {len(tokens)}")
    return [tokens[i * length : (i + 1) * length] for i in range(count)]

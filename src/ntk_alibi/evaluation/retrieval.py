"""A model's answers to the cases of tasks.py, and its perplexity on prose, position by position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from ntk_alibi.evaluation.tasks import Case, Encode

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def encoder(tokenizer: PreTrainedTokenizerBase) -> Encode:
    """How a transformers tokenizer encodes pieces of text."""

    def encode(texts: list[str]) -> list[list[int]]:
        tokens: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
        return tokens

    return encode


@torch.inference_mode()
def answers_right(model: PreTrainedModel, case: Case) -> list[bool]:
    """Whether each question is answered right: the likeliest token is right throughout."""
    tokens = torch.from_numpy(case.tokens).to(model.device)
    positions = torch.tensor([p for begin, end in case.answers for p in range(begin, end)])
    logits = model(
        tokens[None], use_cache=False, logits_to_keep=(positions - 1).to(model.device)
    ).logits[0]
    right = (logits.argmax(-1) == tokens[positions]).tolist()
    lengths = [end - begin for begin, end in case.answers]
    ends = np.cumsum(lengths)
    return [all(right[end - length : end]) for length, end in zip(lengths, ends, strict=True)]


@torch.inference_mode()
def negative_log_likelihood(
    model: PreTrainedModel, tokens: NDArray[np.int64], bins: int
) -> NDArray[np.float64]:
    """Mean nats a token in `bins` equal ranges of positions of one window of prose; (bins,)."""
    window = torch.from_numpy(tokens).to(model.device)
    logits = model(window[None], use_cache=False).logits[0, :-1]
    nats = F.cross_entropy(logits.float(), window[1:], reduction="none").cpu().numpy()
    return np.array([part.mean() for part in np.array_split(nats.astype(np.float64), bins)])


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

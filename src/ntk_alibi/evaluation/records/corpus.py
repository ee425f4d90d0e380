"""English prose that ships with the package, and windows of its tokens.

The prose is the King James Bible, a paragraph for each chapter, without the verse marks. Its
copyright has expired. The text comes from Debian's bible-kjv-text 4.38.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ntk_alibi.evaluation.records.record import Encode

#: Paragraphs are encoded in groups of so many, until there are enough windows.
PARAGRAPHS_AT_A_TIME = 16

#: Every HELD_OUT_STEP-th chapter is held out from training.
HELD_OUT_STEP = 16

#: Whole books that can be held out: the index of the first chapter, and the number of chapters. In
#: each of them, two windows of 8192 tokens of the nano models share no 13 words in a row with
#: another book.
BOOKS = {
    "Job": (436, 42),
    "Proverbs": (628, 31),
    "Daniel": (850, 12),
    "John": (997, 21),
    "Revelation": (1167, 22),
}


def training_text(held_out: str = "chapters") -> list[str]:
    """Return the chapters for training.

    Args:
        held_out: what is left out: "chapters" for every 16th chapter, or "books" for `BOOKS`.
    """
    left_out = {index for text in _held_out(held_out) for index in text}
    return [chapter for index, chapter in enumerate(_chapters()) if index not in left_out]


def held_out_text(held_out: str = "chapters") -> list[str]:
    """Return the chapters for evaluation; see `training_text`."""
    return [chapter for text in held_out_texts(held_out) for chapter in text]


def held_out_texts(held_out: str = "chapters") -> list[list[str]]:
    """Return the chapters for evaluation as texts, which are lists of chapters.

    Each held-out book is one text; so are all held-out single chapters together.
    """
    chapters = _chapters()
    return [[chapters[index] for index in text] for text in _held_out(held_out)]


def _held_out(held_out: str) -> list[range]:
    if held_out == "books":
        return [range(first, first + count) for first, count in BOOKS.values()]
    return [range(HELD_OUT_STEP - 1, len(_chapters()), HELD_OUT_STEP)]


#: Functions that return the texts of each split.
SPLITS: dict[str, Callable[[], list[list[str]]]] = {
    "held-out": held_out_texts,
    "training": lambda: [training_text()],
    "held-out-books": lambda: held_out_texts("books"),
}


def sentences(chapters: list[str]) -> tuple[str, ...]:
    """Split chapters into sentences."""
    return tuple(s for chapter in chapters for s in re.split(r"(?<=[.?!]) ", chapter))


def prose_windows(
    encode: Encode, texts: list[list[str]], length: int, count: int
) -> list[NDArray[np.int64]]:
    """Cut `count` windows of `length` tokens from texts, each window from one text.

    Args:
        encode: encodes strings.
        texts: lists of paragraphs.
        length: number of tokens in a window.
        count: number of windows.

    Raises:
        ValueError: the texts have fewer windows.
    """
    windows: list[NDArray[np.int64]] = []
    for paragraphs in texts:
        tokens: list[int] = []  # after the last window of this text
        for first in range(0, len(paragraphs), PARAGRAPHS_AT_A_TIME):
            for paragraph in encode(paragraphs[first : first + PARAGRAPHS_AT_A_TIME]):
                tokens += paragraph
            whole = len(tokens) // length * length
            windows += list(np.array(tokens[:whole], np.int64).reshape(-1, length))
            del tokens[:whole]
            if len(windows) >= count:
                return windows[:count]
    raise ValueError(f"prose must hold {count} windows of {length} tokens, got {len(windows)}")


@cache
def _chapters() -> tuple[str, ...]:
    packed = Path(__file__).with_name("kjv.txt.xz").read_bytes()
    return tuple(lzma.decompress(packed).decode("utf-8").splitlines())

"""English prose that ships with the package, and windows of tokens from running prose.

It is the King James Bible with a paragraph per chapter. The copyright has expired. The text comes
from Debian's bible-kjv-text 4.38 without verse numbers.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ntk_alibi._installed import shipped
from ntk_alibi.evaluation.records.record import Encode

#: Paragraphs that are encoded at a time, until there are enough windows.
PARAGRAPHS_AT_A_TIME = 16

#: Every HELD_OUT_STEP-th chapter is held out from training.
HELD_OUT_STEP = 16

#: Books that can be held out whole, (number of the first chapter, number of chapters). They are the
#: books with two windows of 8192 tokens of the nano models in which no 13 words in a row are in
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
        held_out: "chapters" to hold out every 16th chapter, "books" for the whole books of `BOOKS`.
    """
    kept = {number for text in _held_out(held_out) for number in text}
    return [chapter for number, chapter in enumerate(_chapters()) if number not in kept]


def held_out_text(held_out: str = "chapters") -> list[str]:
    """Return the chapters for evaluation; see `training_text`."""
    return [chapter for text in held_out_texts(held_out) for chapter in text]


def held_out_texts(held_out: str = "chapters") -> list[list[str]]:
    """Return the chapters for evaluation in lists of chapters that are read in a row.

    Each held-out book is a list. The held-out single chapters, which have nothing to do with each
    other, are one list.
    """
    chapters = _chapters()
    return [[chapters[number] for number in text] for text in _held_out(held_out)]


def _held_out(held_out: str) -> list[range]:
    if held_out == "books":
        return [range(first, first + count) for first, count in BOOKS.values()]
    return [range(HELD_OUT_STEP - 1, len(_chapters()), HELD_OUT_STEP)]


#: Texts by the name of their split, as lists of chapters that follow each other.
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
    """Cut the first `count` windows of `length` tokens from texts, each window from one text.

    Args:
        encode: function that encodes pieces of text.
        texts: lists of paragraphs that follow each other.
        length: number of tokens in a window.
        count: number of windows.

    Raises:
        ValueError: the texts hold fewer windows.
    """
    windows: list[NDArray[np.int64]] = []
    for paragraphs in texts:
        tokens: list[int] = []  # of this text, behind its last window
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
    packed = shipped("ntk_alibi.evaluation.records", "kjv.txt.xz", "the prose").read_bytes()
    return tuple(lzma.decompress(packed).decode("utf-8").splitlines())

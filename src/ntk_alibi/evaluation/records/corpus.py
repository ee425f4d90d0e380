"""English prose that ships with the package: the King James Bible with a paragraph per chapter.

The copyright has expired. The text comes from Debian's bible-kjv-text 4.38 without verse numbers.
"""

from __future__ import annotations

import lzma
import re
from functools import cache
from importlib import resources

#: Every HELD_OUT_STEP-th chapter is held out from training.
HELD_OUT_STEP = 16


def training_text() -> list[str]:
    """Return the chapters for training."""
    return [c for number, c in enumerate(_chapters(), 1) if number % HELD_OUT_STEP]


def held_out_text() -> list[str]:
    """Return the held-out chapters for evaluation."""
    return [c for number, c in enumerate(_chapters(), 1) if number % HELD_OUT_STEP == 0]


#: The chapters by the name of their split.
SPLITS = {"held-out": held_out_text, "training": training_text}


def sentences(chapters: list[str]) -> tuple[str, ...]:
    """Split chapters into sentences."""
    return tuple(s for chapter in chapters for s in re.split(r"(?<=[.?!]) ", chapter))


@cache
def _chapters() -> tuple[str, ...]:
    packed = resources.files("ntk_alibi.evaluation.records").joinpath("kjv.txt.xz").read_bytes()
    return tuple(lzma.decompress(packed).decode("utf-8").splitlines())

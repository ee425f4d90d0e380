"""Rules that decide whether an answer is right."""

from __future__ import annotations

import re
from collections.abc import Sequence


def score_lines(prediction: str, expected: int) -> bool:
    """Whether an answer to LongEval's lines task is right: its last integer is the expected one.

    Args:
        prediction: what the model wrote.
        expected: the number of the line asked for.

    Returns:
        False too if the answer holds no digit.

    Raises:
        TypeError: an argument of the wrong type.

    Example:
        >>> score_lines("The <REGISTER_CONTENT> in line torpid-kid is <2416>.", 2416)
        True
        >>> score_lines("<2416>, or was it <99>?", 2416)
        False

    Source: the rule of LongEval (DachengLi1/LongChat); it gives the accuracies printed in its
    published prediction files.
    """
    if not isinstance(prediction, str) or isinstance(expected, bool | str):
        raise TypeError(
            f"prediction must be a string and expected an integer, got {prediction!r}, {expected!r}"
        )
    integers = re.findall(r"[0-9]+", prediction)
    return bool(integers) and int(integers[-1]) == expected


def score_topics(prediction: str, topics: Sequence[str]) -> bool:
    """Whether an answer to LongEval's topics task is right.

    Of the record's topics, the first one the answer names must be the record's first. Case,
    punctuation and a leading article do not count; a topic is named where all its words stand in a
    row.

    Args:
        prediction: what the model wrote.
        topics: the topics of the record in order; the first is the expected one.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: no topics.

    Example:
        >>> topics = ["The role of sports in society", "The benefits of reading"]
        >>> score_topics(": The first topic is: the role of sports in society.", topics)
        True
        >>> score_topics("The benefits of reading, then the role of sports in society", topics)
        False

    Source: LongEval judges this task with a language model; this string rule is ours.
    """
    if not isinstance(prediction, str) or isinstance(topics, str):
        raise TypeError(
            f"prediction must be a string and topics a sequence of them, got {prediction!r}, "
            f"{topics!r}"
        )
    if not topics:
        raise ValueError("topics must hold at least the expected topic, got none")
    answer = f" {_plain(prediction)} "
    named = {topic: answer.find(f" {_plain(topic)} ") for topic in topics}
    places = [place for place in named.values() if place >= 0]
    return bool(places) and named[topics[0]] == min(places)


def _plain(text: str) -> str:
    """Lower case words without punctuation and without a leading article."""
    words = re.findall(r"\w+(?:['-]\w+)*", text.casefold())
    return " ".join(words[1:] if len(words) > 1 and words[0] in ("a", "an", "the") else words)

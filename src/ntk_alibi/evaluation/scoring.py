"""Rules that score answers to the lines and topics of LongEval."""

from __future__ import annotations

import re
from collections.abc import Sequence


def score_lines(prediction: str, expected: int) -> bool:
    """Return whether the last integer of an answer about LongEval's lines is the expected one.

    Args:
        prediction: the text that the model generated.
        expected: the value of the line in question.

    Returns:
        True if the answer is right; False also for an answer without digits.

    Raises:
        TypeError: an argument has the wrong type.

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
    """Return whether an answer about LongEval's topics is right.

    It is right if the first topic that it names is the first one of the record. An answer names a
    topic if it contains the topic's words in a row; case, punctuation and a leading article do not
    matter.

    Args:
        prediction: the text that the model generated.
        topics: the topics of the record in order; the first is the expected one.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: topics is empty.

    Example:
        >>> topics = ["The role of sports in society", "The benefits of reading"]
        >>> score_topics(": The first topic is: the role of sports in society.", topics)
        True
        >>> answer = "The benefits of reading, then the role of sports in society"
        >>> score_topics(answer, topics)
        False

    Source: LongEval judges this task with a language model; this string rule is ours.
    """
    if not isinstance(prediction, str) or isinstance(topics, str):
        raise TypeError(
            f"prediction must be a string and topics a sequence of strings, got {prediction!r}, "
            f"{topics!r}"
        )
    if not topics:
        raise ValueError("topics must hold at least the expected topic, got none")
    answer = f" {_plain(prediction)} "
    named = {topic: answer.find(f" {_plain(topic)} ") for topic in topics}
    places = [place for place in named.values() if place >= 0]
    return bool(places) and named[topics[0]] == min(places)


def _plain(text: str) -> str:
    """Return the words of a text in lower case, without punctuation and leading article."""
    words = re.findall(r"\w+(?:['-]\w+)*", text.casefold())
    return " ".join(words[1:] if len(words) > 1 and words[0] in ("a", "an", "the") else words)

"""Passes, each of which answers all requests whose texts are prefixes of its text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class Pass:
    """A text for one pass, and the requests that the pass answers.

    Attributes:
        tokens: tokens of the longest request, with its continuation.
        spans: for each request, its index, where its continuation begins, and the tokens of the
            continuation.
    """

    tokens: list[int]
    spans: list[tuple[int, int, list[int]]]

    @property
    def inputs(self) -> list[int]:
        """Input tokens: all but the last one of the continuation that ends last."""
        return self.tokens[: max(begin + len(targets) - 1 for _, begin, targets in self.spans)]


def group_prefixes(texts: Sequence[str], *, share: bool) -> Iterator[list[int]]:
    """Yield groups of indices of texts, all prefixes of the first text in their group.

    Args:
        texts: the texts of all requests.
        share: whether a group may have more than one text.
    """
    group: list[int] = []
    for i in sorted(range(len(texts)), key=texts.__getitem__, reverse=True):
        if group and not (share and texts[group[0]].startswith(texts[i])):
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def scored_span(context: str, continuation: str) -> tuple[int, int]:
    """Return the span of characters that a request scores in its whole text.

    Like `_encode_pair` of the harness, it includes whitespace at the end of the context.
    """
    return len(context.rstrip()), len(context) + len(continuation)


def token_edges(tokenizer: Any, tokens: list[int], text: str) -> dict[int, int]:
    """Return, for each character offset in a text, how many of its tokens are before it.

    Only offsets between two tokens, and the end, are keys. A tokenizer without offsets gives none;
    each request then has a pass of its own.
    """
    if not tokenizer.is_fast:
        return {}
    encoded = tokenizer(text, return_offsets_mapping=True)
    if encoded["input_ids"] != tokens:
        return {}
    places = [*encoded["offset_mapping"], (len(text), len(text))]
    return {
        end: i + 1
        for i, (_, end) in enumerate(places[:-1])
        if i + 2 == len(places) or (end and places[i + 1][0] >= end and places[i + 1][1] > end)
    }

"""Readings of the study: the rules for longer texts, and the answers of a trained encoder."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ntk_alibi.methods import parse_method
from studies.encoder import texts
from studies.encoder.recipe import EncoderTraining
from studies.encoder.texts import MaskedText
from studies.rules import Rule
from studies.schemes.schemes import AttentionView

#: The rules, by spelling. Dynamic methods count the tokens of each text; FACTOR is for texts whose
#: length is known beforehand.
RULES = {
    rule.spelling: rule
    for rule in (
        Rule("original"),
        Rule("dynamic-interpolation:1"),
        Rule("ntk:FACTOR"),
        Rule("dynamic-ntk"),
        Rule("flat:FACTOR"),
        Rule("dynamic-flat"),
    )
}

#: Tokens of a forward pass.
BATCH_TOKENS = 8192


@dataclass(frozen=True)
class ReadingPlan:
    """How many texts are read.

    Attributes:
        texts: pairs of a multiple of the training length and the number of its texts.
        seed: seed of the texts, together with the seed of the training.
    """

    texts: tuple[tuple[int, int], ...] = ((1, 8), (2, 8), (4, 12), (8, 4))
    seed: int = 77_000


def read(
    trained: EncoderTraining, plan: ReadingPlan, stored: Container[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read with a trained encoder, and yield the results that are not stored yet.

    Args:
        trained: the training.
        plan: how many texts are read.
        stored: keys of stored results.

    Yields:
        The key "<rule>/<multiple>" and, for each text, whether each masked token is found (right)
        and how far away its answer is (distances).
    """
    train_length = trained.recipe.train_length
    for multiple, count in plan.texts:
        rng = np.random.default_rng([plan.seed, trained.recipe.seed, multiple])
        drawn = [texts.draw(multiple * train_length, rng) for _ in range(count)]
        for rule in RULES.values():
            key = f"{rule.spelling}/{multiple}"
            if key not in stored:
                method = parse_method(rule.method(multiple), train_length)
                view = AttentionView(scaling=method.scaling)
                yield (
                    key,
                    {
                        "right": found(trained, drawn, view),
                        "distances": [text.distances.tolist() for text in drawn],
                    },
                )


@torch.inference_mode()
def found(
    trained: EncoderTraining, drawn: list[MaskedText], view: AttentionView
) -> list[list[bool]]:
    """Return for each text whether the likeliest token is right at each masked column."""
    model = trained.model.eval()
    model.view = view
    rows = max(1, BATCH_TOKENS // len(drawn[0].tokens))
    right: list[list[bool]] = []
    for begin in range(0, len(drawn), rows):
        batch = drawn[begin : begin + rows]
        tokens = torch.from_numpy(np.stack([text.tokens for text in batch]))
        likeliest = tokens.clone()
        masked = tokens == texts.MASK
        likeliest[masked] = model(tokens, masked).argmax(-1)
        right += [
            (row.numpy()[text.places] == text.answers).tolist()
            for row, text in zip(likeliest, batch, strict=True)
        ]
    model.view = AttentionView()
    return right

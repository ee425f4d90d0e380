"""The trainings of the study: a small encoder with symmetric ALiBi, and their settings.

Heads, layers and training length are as in jina-embeddings-v2-small-en, and so are the slopes: the
flattest spans exp(-2) over the training length. The encoder is the decoder of schemes/, with
attention to both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ntk_alibi import ALiBi
from studies import training
from studies.encoder import texts
from studies.schemes.decoder import Decoder
from studies.schemes.schemes import AttentionView, LayerShape, Positions


class SymmetricALiBi(Positions):
    """ALiBi of an encoder: standard slopes, the same on both sides."""

    def __init__(self, place: LayerShape) -> None:
        super().__init__(place)
        self.heads = place.heads

    def forward(self, hidden: torch.Tensor, view: AttentionView) -> dict[str, Any]:
        """Return the arguments of `attention`; see `Positions`."""
        bias = ALiBi(self.heads, view.scaling, sides="symmetric")
        return {"bias": bias, "causal": False}


@dataclass(frozen=True)
class EncoderRecipe(training.Recipe):
    """All settings of a training.

    Attributes:
        steps: number of steps; the learning rate falls in the second half of them.
        autocast: whether matrices are multiplied in bfloat16.
    """

    train_length: int = 512
    start_length: int = 32
    threshold: float = 0.8
    layers: int = 3
    muon_rate: float = 0.04
    adam_rate: float = 5e-3
    tokens: int = 1024
    steps: int = 1200
    autocast: bool = True


class EncoderTraining(training.Training):
    """The training of an encoder.

    Args:
        recipe: settings of the training.
    """

    def __init__(self, recipe: EncoderRecipe) -> None:
        super().__init__(recipe, training.FixedCurriculum(recipe.start_length))

    def make_model(self) -> Decoder:
        """Build an encoder with random first weights."""
        recipe = self.recipe
        place = LayerShape(recipe.heads, recipe.hidden_size, recipe.train_length)
        return Decoder(
            texts.VOCABULARY,
            recipe.layers,
            recipe.hidden_size,
            recipe.heads,
            lambda: SymmetricALiBi(place),
            autocast=recipe.autocast,
        )

    def batch(self) -> training.Batch:
        """Draw texts, whose masked tokens alone are in the loss; see `Training`.

        The curriculum follows the accuracy on numbers, not on names.
        """
        length = self.curriculum.length
        drawn = [texts.draw(length, self.rng) for _ in range(self.recipe.rows(length))]
        tokens = np.stack([text.tokens for text in drawn])
        expected, numbers = tokens.copy(), np.zeros_like(tokens, bool)
        for i, text in enumerate(drawn):
            expected[i, text.places] = text.answers
            numbers[i, text.places] = text.distances > texts.NEAR
        weights = (tokens == texts.MASK).astype(np.float32)
        return training.Batch(*map(torch.from_numpy, (tokens, expected, weights, numbers)))

"""Recipes of the study of position schemes that take seconds, and small decoders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from studies import training
from studies.schemes.measure import MeasurePlan
from studies.schemes.recipe import StudyRecipe

#: A recipe of a few steps with a few tokens each.
TINY = StudyRecipe(
    train_length=64, start_length=32, steps=4, tokens=128, layers=1, hidden_size=32, heads=2,
    autocast=False,
)  # fmt: skip
TINY_PLAN = MeasurePlan(multiples=(1, 2), records=2, windows=2)


@contextmanager
def interrupted(kind: type[training.Training], step: int) -> Iterator[None]:
    """Interrupt the trainings of a class, which write a checkpoint after each step, in a step."""
    done = kind.step

    def stop(self: training.Training) -> float:
        if self.curriculum.step == step:
            raise KeyboardInterrupt
        return done(self)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training, "CHECKPOINT_SECONDS", 0.0)
        patched.setattr(kind, "step", stop)
        with pytest.raises(KeyboardInterrupt):
            yield

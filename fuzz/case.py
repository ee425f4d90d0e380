"""One case: its name and its result."""

from __future__ import annotations

import os
import traceback
from typing import NamedTuple

import numpy as np

import ntk_alibi as na
from fuzz.compare import WrongError
from fuzz.draw import Draw
from fuzz.kinds import KINDS

#: Characters of a call in a report at most.
LONGEST_NOTE = 1500


class Case(NamedTuple):
    """A case, by which it can be run again: `python -m fuzz --kind KIND --seed SEED`."""

    kind: str
    seed: int

    @property
    def command(self) -> str:
        """The command that runs the case again, on the instruction set of this process."""
        isa = os.environ.get("NTK_ALIBI_ISA") or na.info()["isa"]
        return f"NTK_ALIBI_ISA={isa} python -m fuzz --kind {self.kind} --seed {self.seed}"

    def run(self) -> str | None:
        """Return None if the case is right, else a report."""
        draw = Draw(self.kind, self.seed)
        try:
            with np.errstate(all="ignore"):
                KINDS[self.kind][1](draw)
        except WrongError as error:
            wrong = str(error)
        except Exception:
            wrong = traceback.format_exc()
        else:
            return None
        notes = (str(note)[:LONGEST_NOTE] for note in draw.notes)
        return "\n".join((self.command, wrong, *notes))


def drawn_case(seed: int, kinds: list[str]) -> Case:
    """Return the case of a seed, with a kind drawn by weight; if all are 0, equally."""
    weights = {kind: KINDS[kind][0] for kind in kinds}
    if not any(weights.values()):
        weights = dict.fromkeys(kinds, 1.0)
    return Case(Draw("kind", seed).weighted(weights), seed)

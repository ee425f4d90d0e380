"""Ways to read texts that are longer than in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ntk_alibi import NTK, FlatHeads, Interpolation, Knee, LogN
from studies.schemes.schemes import AttentionView, Positions, XposPositions


@dataclass(frozen=True)
class ReadingMode:
    """A way to read texts that are longer than in training.

    Attributes:
        name: name in results.
        label: label in tables.
        view: function of the multiple of the training length and the training length.
        applies: function that returns whether the mode is available for a scheme.
        within: whether the mode changes something within the training length, too.
    """

    name: str
    label: str
    view: Callable[[int, int], AttentionView]
    applies: Callable[[type[Positions]], bool] = lambda scheme: True
    within: bool = False


def _scaled(
    name: str,
    label: str,
    kind: type,
    scaling: Callable[[int, int], Any],
    log_n: Callable[[int], LogN | None] = lambda length: None,
) -> ReadingMode:
    """Make the mode that scales the schemes which support a type of scalings."""

    def view(multiple: int, length: int) -> AttentionView:
        return AttentionView(scaling=scaling(multiple, length), log_n=log_n(length))

    return ReadingMode(name, label, view, lambda scheme: kind in scheme.scalings)


def _flat_heads(multiple: int, length: int) -> FlatHeads:
    return FlatHeads(2.0 * multiple, share=0.25)


#: The first mode reads as in training. XPOS's blocks have half the training length.
READING_MODES = (
    ReadingMode("plain", "as trained", lambda m, length: AttentionView(), within=True),
    ReadingMode("window", "window", lambda m, length: AttentionView(window=length)),
    ReadingMode(
        "log-n",
        "log-n",
        lambda m, length: AttentionView(log_n=LogN(length)),
        lambda scheme: not scheme.learns_log_n,
    ),
    _scaled("pi", "interpolation", Interpolation, lambda m, length: Interpolation(float(m))),
    _scaled("ntk", "NTK", NTK, lambda m, length: NTK(float(m))),
    _scaled("flat", "flat heads", FlatHeads, _flat_heads),
    _scaled("knee", "knee", Knee, lambda m, length: Knee(length // 2, factor=7.0 * m)),
    _scaled(
        "flat-log-n",
        "flat heads, log-n ½",
        FlatHeads,
        _flat_heads,
        lambda length: LogN(length, strength=0.5),
    ),
    ReadingMode(
        "blocks",
        "blocks",
        lambda m, length: AttentionView(causal_block=length // 2),
        lambda scheme: scheme is XposPositions,
        within=True,
    ),
)


def views(
    scheme: type[Positions], multiples: Sequence[int], train_length: int
) -> dict[str, AttentionView]:
    """Return all views with which a scheme reads, by "<reading>/<multiple>"."""
    return {
        f"{mode.name}/{multiple}": mode.view(multiple, train_length)
        for multiple in multiples
        for mode in READING_MODES
        if mode.applies(scheme) and (mode.within or multiple > 1)
    }

"""Ways to read texts that are longer than in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ntk_alibi import NTK, FlatHeads, Interpolation, LogN
from ntk_alibi.methods import parse_method
from studies.rules import Rule
from studies.schemes.schemes import AttentionView, Positions, XposPositions


@dataclass(frozen=True)
class ReadingMode:
    """A way to read texts that are longer than in training.

    Attributes:
        name: name in results.
        label: label in tables, as a function of multiples of the training length.
        view: function of the multiple of the training length and the training length.
        applies: function that returns whether the mode is available for a scheme.
        within: whether the mode changes something within the training length, too.
    """

    name: str
    label: Callable[[Sequence[int]], str]
    view: Callable[[int, int], AttentionView]
    applies: Callable[[type[Positions]], bool] = lambda scheme: True
    within: bool = False


def _labelled(text: str) -> Callable[[Sequence[int]], str]:
    return lambda multiples: text


def _method(name: str, kind: type, rule: Rule) -> ReadingMode:
    """Make the mode of a rule, for the schemes which support a type of scalings."""

    def view(multiple: int, length: int) -> AttentionView:
        method = parse_method(rule.method(multiple), length)
        return AttentionView(scaling=method.scaling, log_n=method.log_n)

    return ReadingMode(name, rule.shown, view, lambda scheme: kind in scheme.scalings)


#: The first mode reads as in training. XPOS's blocks have half the training length.
READING_MODES = (
    ReadingMode("plain", _labelled("as trained"), lambda m, length: AttentionView(), within=True),
    ReadingMode("window", _labelled("window"), lambda m, length: AttentionView(window=length)),
    ReadingMode(
        "log-n",
        _labelled("logn=1"),
        lambda m, length: AttentionView(log_n=LogN(length)),
        lambda scheme: not scheme.learns_log_n,
    ),
    _method("pi", Interpolation, Rule("interpolation:FACTOR")),
    _method("ntk", NTK, Rule("ntk:FACTOR")),
    _method("flat", FlatHeads, Rule("flat:FACTOR", growth=2)),
    _method("flat-log-n", FlatHeads, Rule("flat:FACTOR:logn=0.5", growth=2)),
    ReadingMode(
        "blocks",
        _labelled("blocks"),
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

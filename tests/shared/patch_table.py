"""The table of patches: families, scalings, options, padding, doors and ways to call.

`tests/integrations/test_table.py` takes rows of it. A new family, scaling, option or way is an
entry here; what cannot go together is a line of `IMPOSSIBLE`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import ntk_alibi as na
from table_families import FAMILIES, Meaning, of_kind

ROWS, TOKENS = 3, 18


# ---- what a patch is given ---------------------------------------------------------------------

R1, R2 = np.linspace(0.3, 1.2, 6), np.linspace(0.2, 2.0, 6)


def dynamic(plain: np.ndarray, counts: np.ndarray) -> np.ndarray:
    factors = [na.reference.dynamic_factor(2.0, int(n), 8) for n in counts]
    return np.stack([na.reference.ntk_slopes(plain, factor) for factor in factors], axis=-1)


def kerple(heads: int) -> tuple[np.ndarray, np.ndarray]:
    return R1[:heads], R2[:heads]


def own_bias(distance: np.ndarray, heads: int) -> np.ndarray:
    return na.reference.kerple_log(abs(distance), *kerple(heads))


@dataclass(frozen=True)
class Choice:
    """What `patch` gets, as a function of the number of heads, and what it means."""

    scaling: Callable[[int], Any]
    meaning: Callable[[int], Meaning]


def choice(scaling: Any, **meaning: Any) -> Choice:
    return Choice(lambda heads: scaling, lambda heads: Meaning(**meaning))


SCALINGS = {
    "plain": choice(None),
    "interpolation": choice(
        na.Interpolation(2.0), slopes=lambda x, _: na.reference.interpolated_slopes(x, 2.0)
    ),
    "ntk": choice("ntk:4", slopes=lambda x, _: na.reference.ntk_slopes(x, 4.0)),
    "flat heads": choice(
        na.FlatHeads(8.0), slopes=lambda x, _: na.reference.flat_heads_slopes(x, 8.0, 0.25)
    ),
    "maximum": choice(na.MaxBias(4.0), slopes=lambda x, _: na.reference.max_bias_slopes(x, 4.0)),
    "dynamic": choice(na.DynamicNTK(2.0, 8), slopes=dynamic, whole=True),
    "own bias": Choice(
        lambda heads: na.KerpleLog(*kerple(heads)),
        lambda heads: Meaning(bias=functools.partial(own_bias, heads=heads)),
    ),
    "own bias in a layer": Choice(
        lambda heads: {1: na.KerpleLog(*kerple(heads))},
        lambda heads: Meaning(bias=functools.partial(own_bias, heads=heads), layers=[1]),
    ),
}


def strengths(heads: int) -> tuple[float, ...]:
    return tuple(np.linspace(0.0, 1.5, heads).tolist())


#: Options of `patch`, by the number of heads, and what they mean.
OPTIONS: dict[str, Callable[[int], tuple[dict[str, Any], dict[str, Any]]]] = {
    "none": lambda _: ({}, {}),
    "window": lambda _: limits(window=5),
    "window and sinks": lambda _: limits(window=5, sink=2),
    "blocks": lambda _: limits(causal_block=4),
    "log n": lambda _: ({"log_n": 6}, {"log_n": (6, 1.0)}),
    "log n by head": lambda heads: (
        {"log_n": na.LogN(6, strengths(heads))}, {"log_n": (6, strengths(heads))}
    ),
}  # fmt: skip


def limits(**given: int) -> tuple[dict[str, Any], dict[str, Any]]:
    return given, {"limits": given}


def _masks() -> dict[str, torch.Tensor | None]:
    left, right, holes = torch.ones((3, ROWS, TOKENS), dtype=torch.long)
    left[0, :7] = left[2, :2] = 0
    right[0, 12:] = right[2, 16:] = 0
    holes[0, [3, 4, 9]] = holes[1, 0] = holes[2, 5:13] = 0
    return {"none": None, "left": left, "right": right, "holes": holes}


MASKS = _masks()

# ---- rows --------------------------------------------------------------------------------------

#: Entries of the columns, by name.
Row = dict[str, str]

#: Ways to call, which `patched_calls.py` has.
PIECES = ("pieces, dynamic", "pieces, static", "pieces, growing", "pieces, window")
GENERATE = (
    "generate, no cache", "generate, dynamic", "generate, static", "generate, growing",
    "generate, window", "beams", "beams, growing", "prompt lookup", "chunks of the prompt",
)  # fmt: skip
DROPOUT = ("dropout", "dropout, gradients", "dropout, checkpoints")
GRADIENTS = ("gradients", "checkpoints", "reentrant checkpoints", *DROPOUT[1:])
CALLS = ("call", "forward", "base forward", "head", "embeddings", "threads", "weights")
WAYS = (*CALLS, *PIECES, *GENERATE, *GRADIENTS, "dropout")

#: Ways that take a second and more.
LONG_WAYS = ("compiled", "exported")

COLUMNS: dict[str, tuple[str, ...]] = {
    "family": tuple(FAMILIES),
    "way": WAYS,
    "scaling": tuple(SCALINGS),
    "option": tuple(OPTIONS),
    "form": ("fused", "eager", "traceable"),
    "padding": tuple(MASKS),
    "door": ("patch", "configuration", "deep copy", "pickle", "over another", "the inner model"),
}

#: Of each kind one family, whose relatives share its code.
QUICK = (
    "bloom", "mpt", "falcon", "baichuan", "jina", "mosaic", "toy", "t5", "t5, encoder", "mpnet",
)  # fmt: skip


def but(column: str, *entries: str) -> list[str]:
    """Return the other entries of a column."""
    return [entry for entry in (*COLUMNS[column], *LONG_WAYS) if entry not in entries]


DECODERS, ENCODERS, BOTH = of_kind("decoder"), of_kind("encoder"), of_kind("both")
REMOTE, TOYS = of_kind("encoder", "remote decoder"), ("toy", "toy, causal")
BUCKETS = of_kind("both", "buckets")
COLUMN_POSITIONS = [name for name, family in FAMILIES.items() if family.layout.columns]
OWN = ("own bias", "own bias in a layer")
DYNAMIC = ("dynamic",)
LIMITS = ("window", "window and sinks", "blocks")
WINDOW_CACHES = ("pieces, window", "generate, window")

#: What does not go together, if all of these columns have one of these entries; and why.
IMPOSSIBLE: tuple[tuple[dict[str, Collection[str]], str], ...] = (
    ({"family": BUCKETS, "scaling": but("scaling", "plain", *OWN)}, "no slopes to scale"),
    ({"family": BUCKETS, "option": but("option", "none", "window")}, "refused"),
    ({"family": BOTH, "scaling": ["own bias in a layer"]}, "each stack counts its layers"),
    ({"family": ENCODERS, "option": LIMITS}, "refused"),
    (
        {"family": COLUMN_POSITIONS, "option": LIMITS, "padding": ["holes"]},
        "limits count tokens, and distances columns",
    ),
    ({"form": ["traceable"], "family": but("family", *DECODERS)}, "refused"),
    ({"form": ["traceable"], "scaling": [*OWN, *DYNAMIC]}, "refused"),
    ({"form": ["traceable"], "option": LIMITS}, "refused"),
    ({"way": DROPOUT, "form": ["eager", "traceable"]}, "torch drops other weights"),
    ({"way": DROPOUT, "family": ["baichuan"]}, "it drops none"),
    # Doors.
    ({"door": ["configuration"], "family": [*REMOTE, *TOYS]}, "no class makes them of one"),
    ({"door": ["configuration"], "scaling": OWN}, "no config holds it"),
    ({"door": ["pickle"], "family": ["baichuan"]}, "its own code has a closure"),
    (
        {"door": ["the inner model"], "family": [*ENCODERS, *BOTH, *TOYS, "t5, encoder"]},
        "it is the model itself",
    ),
    # Ways.
    (
        {
            "way": [*PIECES, "exported"],
            "family": but("family", *DECODERS),
        },
        "for decoders with a cache, and one stack",
    ),
    (
        {"way": GENERATE, "family": but("family", *DECODERS, "t5", "mt5", "umt5", "switch")},
        "no text to generate, or on some versions",
    ),
    ({"way": ["generate, window", *GENERATE[-2:]], "family": BOTH}, "for models of one stack"),
    ({"way": WINDOW_CACHES, "option": but("option", *LIMITS[:2])}, "the cache holds a window"),
    ({"way": WINDOW_CACHES, "padding": ["right", "holes"]}, "refused"),
    ({"way": WINDOW_CACHES, "form": ["traceable"]}, "refused"),
    ({"way": GENERATE, "padding": ["right"], "family": DECODERS}, "the text has ended"),
    (
        {"way": [*PIECES, *GENERATE[1:]], "scaling": ["dynamic"]},
        "keys in its cache were computed with the slopes of a shorter text",
    ),
    (
        {
            "way": ["generate, static"],
            "family": [name for name in FAMILIES if name.startswith("falcon")],
        },
        "stock Falcon fails, too",
    ),
    ({"way": ["exported"], "form": ["fused", "eager"]}, "refused"),
    (
        {
            "way": ["checkpoints", "reentrant checkpoints", "dropout, checkpoints"],
            "family": but("family", *DECODERS, *BOTH),
        },
        "by other names",
    ),
    (
        {"way": ["head"], "family": [name for name in FAMILIES if not FAMILIES[name].head]},
        "transformers has none",
    ),
    ({"way": ["base forward"], "family": [*BOTH, *TOYS]}, "it is the model itself"),
    (
        {"way": ["embeddings"], "family": [*ENCODERS, *TOYS]},
        "they take none, or nothing else",
    ),
    (
        {"way": ["weights"], "family": [*TOYS, "mosaic", "baichuan"]},
        "they return none, or their names differ",
    ),
)


def possible(row: Row) -> bool:
    """Return whether the entries of a row, which may lack columns, go together."""
    return not any(
        all(row.get(column) in entries for column, entries in rule.items())
        for rule, _ in IMPOSSIBLE
    )


def covering(strength: int, columns: dict[str, tuple[str, ...]]) -> list[Row]:
    """Return rows in which any so many entries of different columns meet, where they may.

    Each row begins with entries that have not met yet, and is filled with those that bring the
    most new meetings.
    """
    left = dict.fromkeys(
        tuple(zip(names, entries, strict=True))
        for names in itertools.combinations(columns, strength)
        for entries in itertools.product(*(columns[name] for name in names))
        if possible(dict(zip(names, entries, strict=True)))
    )

    def met(row: Row) -> set[Any]:
        entries = [(name, row[name]) for name in columns if name in row]
        return left.keys() & itertools.combinations(entries, strength)

    def filled(row: Row) -> Row | None:
        name = next((name for name in columns if name not in row), None)
        if name is None:
            return row
        choices = [{**row, name: entry} for entry in columns[name]]
        for choice in sorted(filter(possible, choices), key=lambda x: -len(met(x))):
            whole = filled(choice)
            if whole is not None:
                return whole
        return None

    rows = []
    while left:
        first = next(iter(left))
        row = filled(dict(first))
        del left[first]  # where nothing goes with it, too
        if row is not None:
            rows.append({name: row[name] for name in columns})
            for meeting in met(row):
                del left[meeting]
    return rows

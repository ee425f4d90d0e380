"""The methods that a search tries: all kinds with several factors, and neighbours of the best."""

from __future__ import annotations

import itertools

from ntk_alibi.methods import ORIGINAL, RECOMMENDED, parameter_names

#: The layers of a model are divided into at most so many groups.
LAYER_GROUPS = 3


def families(length: float, train_length: int) -> tuple[str, ...]:
    """Return methods of all kinds with factors around length / train_length.

    The first ones, for small budgets, are the original, NTK, flat heads and the recommended method.
    """
    ratio = max(1.0, length / train_length)
    names = [ORIGINAL]
    for step in (1, 2, 4):
        names += [f"ntk:{_short(step * ratio)}", f"flat:{_short(step * ratio)}"]
    names.append(f"interpolation:{_short(ratio)}")
    names += [f"flat:{_short(2 * ratio)}:{share}" for share in ("0.125", "0.5")]
    for start, step in itertools.product((train_length // 8, train_length // 2), (7, 28)):
        names.append(f"knee:{max(start, 1)}:{_short(step * ratio)}")
    names += ["dynamic-ntk:1:query", "dynamic-ntk:2:query"]
    names.append(f"dynamic-knee:{max(train_length // 2, 1)}:7:query")
    unique = [name for name in dict.fromkeys(names) if not name.endswith(":1")]
    return (*unique[:3], RECOMMENDED, *unique[3:])


def refinements(name: str, layers: int) -> tuple[str, ...]:
    """Return the neighbours of a method: with log-n, in some layers only, with other factors."""
    if name == ORIGINAL:
        return tuple(f"{ORIGINAL}:logn={strength}" for strength in ("0.5", "1"))
    kind, *words = name.split(":")
    last = len(parameter_names(kind)) - 1
    near = []
    for step in (1.5, 1 / 1.5):
        factor = float(words[last]) * step
        if factor > 1 or kind.startswith("dynamic"):
            near.append(":".join([kind, *words[:last], _short(factor), *words[last + 1 :]]))
    return (
        *(f"{name}:logn={strength}" for strength in ("0.5", "1")),
        *(f"{name}:layers={'+'.join(map(str, some))}" for some in _some_layers(layers)),
        *near,
    )


def _some_layers(layers: int) -> list[list[int]]:
    """Return the layers of each group, and the layers of all groups but one."""
    count = min(LAYER_GROUPS, layers)
    edges = [layers * group // count for group in range(count + 1)]
    groups = [list(range(*pair)) for pair in itertools.pairwise(edges)]
    every = set(range(layers))
    without = [sorted(every.difference(group)) for group in groups]
    return [] if count < 2 else [*groups, *(without if count > 2 else [])]


def _short(number: float) -> str:
    return f"{float(f'{number:.3g}'):g}"

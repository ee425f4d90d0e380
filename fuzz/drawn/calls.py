"""One call of attention: its arguments, and the oracle's view of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ntk_alibi as na
from fuzz.draw import Draw
from fuzz.drawn.arrays import Format
from fuzz.drawn.bias import DrawnBias, Scene
from fuzz.drawn.biases import drawn_bias
from fuzz.drawn.inputs import draw_inputs
from fuzz.drawn.places import Places, drawn_places
from fuzz.drawn.rotations import drawn_rotation
from fuzz.drawn.sizes import Sizes
from fuzz.oracle.dropout import factors
from fuzz.oracle.products import Plain, Products, Rotated, Rotation

Floats = NDArray[np.float64]

#: Pairs of tokens times channels up to which the oracle turns every pair.
MOST_TURNS = 200_000


@dataclass(frozen=True)
class Wishes:
    """The requirements of a kind for its calls.

    Attributes:
        learned: tensors and parameters require grad.
        wide: float64 tensors, too.
        poison: NaN and infinity at keys that are hidden.
        dropout: dropout of weights at times.
        far: positions up to 2^31.
        cheaper: divisor of the greatest size.
    """

    learned: bool = False
    wide: bool = True
    poison: bool = True
    dropout: bool = False
    far: bool = False
    cheaper: float = 1.0


@dataclass(frozen=True)
class Call:
    """A call of attention.

    Attributes:
        arrays: query, key and value as passed.
        bias_name, bias: the bias.
        options: keyword arguments, without return_logsumexp.
        exact: query, key and value in float64, keys and values repeated for all heads, 0 where
            no query sees a key.
        ignored: (batch, heads, Q), the queries that see NaN.
    """

    sizes: Sizes
    form: Format
    arrays: tuple[Any, Any, Any]
    bias_name: str
    bias: DrawnBias
    places: Places
    options: dict[str, Any]
    rotation: Rotation | None
    exact: tuple[Floats, Floats, Floats]
    ignored: NDArray[np.bool_]

    def __str__(self) -> str:
        options = {k: _short(v) for k, v in self.options.items()}
        passed = _short(self.bias.passed) if self.bias_name == "dense" else repr(self.bias.passed)
        return f"{self.form} {self.sizes}\nbias {self.bias_name}: {passed}\noptions {options}"

    @property
    def group(self) -> int:
        """The number of query heads per key head."""
        return self.sizes.heads // self.sizes.kv_heads

    @property
    def exempt(self) -> bool:
        """Whether the bias has exempt tokens, for which the package joins two calls."""
        tokens: int = getattr(self.bias.passed, "exempt", 0)
        return tokens > 0 or self.bias_name == "BiALiBi"

    @property
    def factor(self) -> Any:
        """The factor of the dot products, (1 or batch, 1, Q, 1) or a number."""
        scale = self.options.get("scale")
        factor: Any = 1.0 / math.sqrt(self.sizes.dim) if scale is None else scale
        if "log_n" in self.options:
            factor = factor * self.places.pairs.log_n_factors(self.options["log_n"])
        return factor

    @property
    def decays(self) -> bool:
        """Whether the call has XPOS, whose factors fall with the distance."""
        return self.rotation is not None and self.rotation.scale_base is not None

    @cached_property
    def products(self) -> Products:
        """Scores before the bias."""
        query, key, _ = self.exact
        if self.rotation is None:
            return Plain(query, key, self.factor)
        distance = self.places.pairs.distance.astype(np.float64)
        return Rotated(query, key, self.factor, self.rotation, distance)

    @cached_property
    def dropped(self) -> Floats | float:
        """The factors of weights by dropout."""
        share = self.options.get("dropout", 0.0)
        return factors(self.sizes.pairs, share, self.options["seed"]) if share else 1.0

    def attend(self, **more: Any) -> Any:
        """Run the call with more options and NumPy's usual warnings."""
        with np.errstate(divide="warn", over="warn", invalid="warn"):
            return na.attention(*self.arrays, self.bias.passed, **{**self.options, **more})

    @property
    def tolerance(self) -> float | None:
        """The argument skip_tolerance."""
        tolerance: float | None = self.options.get("skip_tolerance", 0.0)
        return tolerance


def _short(value: Any) -> Any:
    """Return a short form of a value for a report."""
    if hasattr(value, "dtype") and np.prod(value.shape) > 40:
        return f"<{value.dtype} {tuple(value.shape)}>"
    return value


def drawn_call(draw: Draw, wishes: Wishes = Wishes(), **fixed: Any) -> Call:
    """Draw a call; `fixed` options replace drawn ones."""
    sizes = Sizes.drawn(draw, cheaper=wishes.cheaper)
    form = Format.drawn(draw, wide=wishes.wide)
    if wishes.learned:
        form = Format(form.name, True)
    places = drawn_places(draw, sizes, form, far=wishes.far)
    name, bias = drawn_bias(Scene(draw, sizes, places, form, wishes.learned))
    options = dict(places.options)
    if draw.chance(0.3):
        options["scale"] = draw.one_of((1.0, 0.0, -0.5, draw.power(-3, 1)))
    tolerance = draw.one_of((0.0, None, draw.power(-9, -0.01)))
    if tolerance != 0.0:
        options["skip_tolerance"] = tolerance
    rotation = _with_rotation(draw, sizes, places, options)
    if wishes.dropout and draw.chance(0.15):
        options["dropout"] = draw.one_of((0.1, 0.5, 1 - 2**-16, 1.0, draw.power(-17, -0.1)))
        options["seed"] = draw.one_of((0, draw.integer(0, 2**64 - 1)))
    options |= fixed
    seen = places.pairs.seen & ~np.isneginf(bias.values)
    seen = np.broadcast_to(seen, sizes.pairs)
    arrays, exact, ignored = _inputs(draw, sizes, form, seen, poison=wishes.poison)
    kept = 1.0 - options.get("dropout", 0.0)
    if form.name == "float16" and 0.0 < kept < 1.0 and np.abs(exact[2]).max(initial=0) > 3e4 * kept:
        del options["dropout"], options["seed"]  # outputs beyond 65504 are refused
    call = Call(sizes, form, arrays, name, bias, places, options, rotation, exact, ignored)
    draw.notes.append(call)
    return call


def _with_rotation(
    draw: Draw, sizes: Sizes, places: Places, options: dict[str, Any]
) -> Rotation | None:
    if draw.chance(0.06):
        options["log_n"] = draw.one_of((2, 5, 100))
    turns = sizes.batch * sizes.heads * sizes.queries * sizes.keys * sizes.dim
    if sizes.dim < 2 or turns > MOST_TURNS or not draw.chance(0.12):
        return None
    options["rotary"], rotation = drawn_rotation(draw, sizes.dim, causal=places.rule.causal)
    return rotation


def _inputs(
    draw: Draw, sizes: Sizes, form: Format, seen: NDArray[np.bool_], *, poison: bool
) -> tuple[Any, Any, NDArray[np.bool_]]:
    query, key, value = draw_inputs(draw, sizes)
    group = sizes.heads // sizes.kv_heads
    hidden = _unseen(sizes, seen)
    ignored = np.zeros(sizes.pairs[:3], np.bool_)
    if poison and draw.chance(0.4):
        if sizes.keys and draw.chance(0.2):  # a key that some queries see
            hidden[:, :, draw.integer(0, sizes.keys - 1)] = True
        bad = draw.one_of((np.nan, np.inf, -np.inf))
        key[hidden], value[hidden] = bad, bad
        np.any(seen & np.repeat(hidden, group, axis=1)[:, :, None], axis=3, out=ignored)
    passed, exact = zip(*(form.array(draw, x) for x in (query, key, value)), strict=True)
    clean = [exact[0]]
    for x in exact[1:]:
        clean.append(np.repeat(np.where(hidden[..., None], 0.0, x), group, axis=1))
    return passed, tuple(clean), ignored


def _unseen(sizes: Sizes, seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the keys that no query sees, (batch, key heads, keys)."""
    unseen = np.ones((sizes.batch, sizes.kv_heads, sizes.keys), np.bool_)
    if 0 not in sizes.pairs:
        grouped = seen.reshape(sizes.batch, sizes.kv_heads, -1, *sizes.pairs[2:])
        np.logical_not(grouped.any(axis=(2, 3)), out=unseen)
    return unseen

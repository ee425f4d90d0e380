"""The kinds of cases: by name, how often one is drawn, and its function, which also checks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fuzz.draw import Draw
from fuzz.kinds import (
    arguments,
    certificate,
    changed_masks,
    dense,
    extremes,
    forward,
    gradient,
    key_norms,
    merge,
    rotate,
    slopes,
)

Kind = Callable[[Draw], None]

KINDS: Mapping[str, tuple[float, Kind]] = {
    "forward": (30, forward.forward),
    "gradient": (15, gradient.gradient),
    "certificate": (20, certificate.certificate),
    "tensor": (8, dense.tensor),
    "key-bias": (4, dense.key_bias),
    "slopes": (4, slopes.slopes),
    "log-n": (2, slopes.log_n),
    "rotate": (2, rotate.rotate),
    "merge": (4, merge.merge),
    "key-norms": (3, key_norms.key_norms),
    "changed-mask": (2, changed_masks.changed_mask),
    "bad-argument": (8, arguments.bad_argument),
    "any-argument": (4, arguments.any_argument),
    "extreme": (4, extremes.extreme),
    "far": (2, extremes.far),
}

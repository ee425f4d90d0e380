"""Checks of scalings, and of the exponents that they return."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi.scaling.knee import without_knee


def scaling(value: Any) -> Any:
    """Return the checked scaling of one layer: None or an object with `scale_exponents`."""
    model_scaling(value)
    one_layer(value)
    return value


def one_layer(scaling: Any) -> None:
    """Refuse a scaling of some layers where no layer is known."""
    if getattr(scaling, "layers", None) is not None:
        raise ValueError(
            f"scaling must be that of one layer here, got {scaling!r}: pass its at_layer(number), "
            "or use patch(model, scaling), which knows the layers"
        )


def model_scaling(value: Any) -> Any:
    """Return the checked scaling of a model, which may apply to some layers only."""
    if value is not None and (
        isinstance(value, type) or not callable(getattr(value, "scale_exponents", None))
    ):
        of_patch = ", the name of a method, which patch takes" if isinstance(value, str) else ""
        raise TypeError(
            "scaling must be None or an object with a method scale_exponents(exponents, lengths) "
            f"such as NTK(factor=4.0), got {value!r}{of_patch}"
        )
    return value


def key_only(scaling: Any, per: str | None) -> None:
    """Check that the bias under a scaling is a number per query plus a number per key."""
    if without_knee(scaling)[1] is not None:
        raise ValueError(
            "scaling must not be a knee here, where all queries share one bias: beyond the knee it "
            f"is no longer a number per query plus one per key; got {scaling!r}. "
            "ALiBi(num_heads, scaling) and patch(...) with compat='exact' take it"
        )
    if per == "query":
        raise ValueError(
            "scaling must not have per='query' here, where all queries share one bias; got "
            f"{scaling!r}. "
            "ALiBi(...).tensor(...) and patch(...) with compat='exact' take it"
        )


def scaled_exponents(scaling: Any, exponents: NDArray[np.float64], heads: int) -> None:
    """Check the exponents that a scaling returned."""
    if exponents.ndim not in (1, 2, 3) or exponents.shape[0 if exponents.ndim == 1 else 1] != heads:
        raise ValueError(
            f"scale_exponents must return ({heads},), (batch, {heads}) or (batch, {heads}, "
            "queries), "
            f"got {exponents.shape} from {scaling!r}"
        )
    if not np.isfinite(exponents).all():
        raise ValueError(
            f"scale_exponents must return finite numbers, got {exponents} from {scaling!r}"
        )

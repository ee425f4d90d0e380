"""The settings of a patch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ntk_alibi import _checks
from ntk_alibi.integrations.biases import bias_of_argument
from ntk_alibi.masks import EVERYTHING, Mask
from ntk_alibi.methods import ORIGINAL, find_train_length, scaling_and_log_n
from ntk_alibi.positions.log_n import LogN, as_log_n
from ntk_alibi.scaling import Scaling, checked_scaling, is_dynamic

#: Forms of attention of a patched model.
ATTENTIONS = ("fused", "eager", "traceable")


@dataclass(frozen=True, repr=False)
class Settings:
    """The choices of one patch."""

    scaling: Scaling | None
    attention: Literal["fused", "eager", "traceable"] = "fused"
    mask: Mask = EVERYTHING
    log_n: LogN | None = None
    bias: Any = None

    @property
    def traceable(self) -> bool:
        """Whether layers attend by transformers' own masks, in plain torch."""
        return self.attention == "traceable"

    @property
    def limits(self) -> dict[str, Any]:
        """The window, causal_block and sink of `patch`."""
        limits = self.mask._asdict()
        del limits["causal"]
        return limits

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `patch` that give these settings."""
        plain = ORIGINAL if self.scaling is None else self.scaling
        method = plain if self.bias is None else self.bias
        return {
            "method": method,
            "attention": self.attention,
            "log_n": self.log_n,
            **self.limits,
        }

    def __repr__(self) -> str:
        """Return the choices that are not the default, as `patch` takes them."""
        first = f"{self.scaling!r}" if self.bias is None else f"bias={self.bias!r}"
        choices = [first, f"attention={self.attention!r}"]
        choices += [f"{name}={value}" for name, value in self.limits.items() if value]
        if self.log_n is not None:
            choices.append(f"log_n={self.log_n!r}")
        return ", ".join(choices)


def warn_of_another_train_length(scaling: Any, stated: int | None) -> None:
    """Warn of a scaling whose training length is far from the one in the model's config."""
    given = getattr(scaling, "train_length", None)
    if given and stated and max(given, stated) > 2 * min(given, stated):
        warnings.warn(
            f"train_length of {scaling!r} is {given}, but the model's config has {stated}: leave "
            "it out to take the value of the config",
            stacklevel=3,
        )


def warn_of_silent_choices(config: Any, method: Any, log_n: Any, length: int | None) -> None:
    """Warn of a training length that nobody stated, where it matters, and of a rotation.

    Args:
        config: the model's configuration.
        method: the method that `patch` got, or None.
        log_n: the log_n that `patch` got.
        length: the training length that was taken, or None if it was saved with the patch.
    """
    if length is not None and find_train_length(config) is None:
        taken, other = (scaling_and_log_n(method, log_n, n) for n in (length, 2 * length))
        if taken != other:
            warnings.warn(
                f"train_length is {length}, which is BLOOM's, for {method!r}, since the model's "
                "config has none: set model.config.seq_length before the patch",
                stacklevel=3,
            )
    for name in ("rope_scaling", "rope_parameters"):
        rope = vars(config).get(name)  # reading the older one as an attribute warns
        kind = rope.get("rope_type", rope.get("type")) if isinstance(rope, Mapping) else None
        if kind not in (None, "default"):
            warnings.warn(
                f"{name} of the model's config has no effect, got {kind!r}: a model with ALiBi has "
                "no rotation, and the method of patch stretches it",
                stacklevel=3,
            )
            return


def settings_of(
    method: Any,
    train_length: int | None,
    *,
    attention: Any = "fused",
    log_n: Any = None,
    **limits: Any,
) -> Settings:
    """Return the settings of `patch`'s arguments, checked as far as possible without a model.

    Args:
        method: the method of `patch`.
        train_length: the training length of a method that has none.
        attention: the form of the attention.
        log_n: log-n scaling.
        limits: window, sink and causal_block of `patch`.
    """
    bias, scaling = bias_of_argument(method), None
    if bias is None:
        scaling, log_n = scaling_and_log_n(method, log_n, train_length)
    checked_scaling(scaling, name="method")
    _checks.choice("attention", attention, ATTENTIONS)
    mask = Mask.checked(**limits)
    log_n = as_log_n(log_n)
    if bias is not None:
        _checks.choice("attention with a bias", attention, ("fused", "eager"))
    settings = Settings(scaling, attention, mask, log_n, bias=bias)
    if settings.traceable:
        form = "with attention='traceable'"
        if is_dynamic(scaling):
            raise ValueError(
                f"method must be static {form}, got {scaling!r}, whose slopes depend on "
                "the entries of a mask: use a scaling without lengths such as NTK(factor), or "
                "attention='fused'"
            )
        if mask != EVERYTHING:
            raise ValueError(
                f"window, sink and causal_block must not be given {form}, which takes the masks "
                f"that transformers makes, got {settings!r}: use attention='fused'"
            )
    return settings

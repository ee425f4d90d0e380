"""The choices of a patch, and where a patched model keeps them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from ntk_alibi import _checks, masks
from ntk_alibi.biases import checks as bias_checks
from ntk_alibi.scaling import Scaling, scaling_from_config
from ntk_alibi.torch.streaming_mask import StreamingMask

#: Where a patched model keeps its settings, newest last, None for those of its configuration. A
#: plain attribute, so that a deep copy has its own.
STACK = "_ntk_alibi_settings"

#: What a patched model may attend with.
ATTENTIONS = ("fused", "sdpa", "eager")

#: Whose rounding the bias may have.
COMPATS = ("exact", "transformers")


@dataclass(frozen=True, repr=False)
class Settings:
    """One patch's choices."""

    scaling: Scaling | None
    attention: Literal["fused", "sdpa", "eager"] = "fused"
    compat: Literal["exact", "transformers"] = "exact"
    sight: StreamingMask = field(default_factory=StreamingMask)

    def __repr__(self) -> str:
        """The choices that are not the default, as `patch` takes them."""
        choices = [f"{self.scaling!r}", f"attention={self.attention!r}"]
        if self.compat != "exact":
            choices.append(f"compat={self.compat!r}")
        limits = dataclasses.asdict(self.sight)
        choices += [f"{name}={value}" for name, value in limits.items() if value]
        return ", ".join(choices)


def current(target: Any) -> Settings:
    """The settings in force."""
    settings = stack_of(target)[-1]
    if settings is not None:
        return settings
    given = {
        name: getattr(target.config, f"alibi_{name}")
        for name in ("scaling", "window", "sink", "causal_block")
        if getattr(target.config, f"alibi_{name}", None) is not None
    }
    if "scaling" in given:
        given["scaling"] = scaling_from_config(given["scaling"])
    return settings_of(**given)


def settings_of(
    scaling: Scaling | None = None,
    *,
    attention: Any = "fused",
    compat: Any = "exact",
    window: int | None = None,
    sink: int = 0,
    causal_block: int | None = None,
) -> Settings:
    """Arguments of `patch`, checked as far as they can be without a model."""
    bias_checks.scaling(scaling)
    _checks.choice("attention", attention, ATTENTIONS)
    _checks.choice("compat", compat, COMPATS)
    window, sink, causal_block = masks.checked_visibility(window, sink, causal_block)
    return Settings(scaling, attention, compat, StreamingMask(window, causal_block, sink))


def stack_of(target: nn.Module) -> tuple[Settings | None, ...]:
    """Return the settings of a model's patches, innermost last."""
    return getattr(target, STACK, ())

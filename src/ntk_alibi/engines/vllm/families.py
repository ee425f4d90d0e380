"""The model families of the plugin: how a model's configuration gives the slopes of its layers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _checks
from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.scaling import Scaling, at_layer


def slopes_of_layer(rule: ModelSlopes, scaling: Scaling | None, layer: int) -> NDArray[np.float32]:
    """Return the slopes of all heads of one layer, (heads,)."""
    slopes: NDArray[np.float32] = rule.numbers(at_layer(scaling, layer))
    return slopes[0, :, 0]


def slopes_of_process(
    slopes: NDArray[np.float32], process: int, processes: int
) -> NDArray[np.float32]:
    """Return the slopes of the heads that one process of tensor parallelism computes."""
    _checks.multiple("the number of heads", len(slopes), "tensor_parallel_size", processes)
    share = len(slopes) // processes
    return slopes[process * share : (process + 1) * share]


@dataclass(frozen=True)
class Family:
    """A family of models in vLLM.

    Attributes:
        name: the family's name in messages.
        names: the beginnings of its architectures' names, such as "Bloom".
        uses_alibi: whether a model has ALiBi, by its configuration.
        rule: the rule of its slopes, by its configuration.
        check: refuses configurations that the plugin's model class does not compute.
        corrects_gelu: whether vLLM's GELU is another one than the family's.
    """

    name: str
    names: tuple[str, ...]
    uses_alibi: Callable[[Any], bool]
    rule: Callable[[Any], ModelSlopes]
    check: Callable[[Any], None] = lambda _: None
    corrects_gelu: bool = False

    def has(self, architecture: str) -> bool:
        """Return whether an architecture is one of this family, with any head."""
        kinds = "|".join(self.names)
        return re.fullmatch(rf"({kinds})(For\w+|Model)", architecture) is not None


def _falcon_rule(config: Any) -> ModelSlopes:
    heads = config.num_attention_heads
    return ModelSlopes.of_falcon(heads, config.hidden_size // heads)


def attention_option(config: Any, name: str) -> Any:
    """Return an option of MPT's `attn_config`, which is a dict in configurations of other code."""
    options = config.attn_config
    return options.get(name) if isinstance(options, dict) else getattr(options, name, None)


#: Options of MPT that the plugin's model computes in one way only, and that way.
_MPT_OPTIONS = {
    "alibi": True,
    "attn_type": "multihead_attention",
    "prefix_lm": False,
    "qk_ln": False,
}


def _check_mpt(config: Any) -> None:
    where = "for an MPT in vLLM with ntk-alibi's plugin"
    for name, only in _MPT_OPTIONS.items():
        given = attention_option(config, name)
        if given is not None:
            _checks.only(f"attn_config.{name}", given, only, where)
    for name, expected in (("no_bias", True), ("logit_scale", None)):
        given = getattr(config, name, expected)
        _checks.only(name, given, expected, where)


def _mpt_rule(config: Any) -> ModelSlopes:
    bias_max = attention_option(config, "alibi_bias_max")
    return ModelSlopes.of_mpt(config.num_attention_heads, bias_max)


BLOOM = Family(
    name="BLOOM",
    names=("Bloom",),
    uses_alibi=lambda config: True,
    rule=lambda config: ModelSlopes.of_bloom(config.num_attention_heads),
    corrects_gelu=True,
)
FALCON = Family(
    name="Falcon",
    names=("Falcon",),
    uses_alibi=lambda config: bool(getattr(config, "alibi", False)),
    rule=_falcon_rule,
)
MPT = Family(
    name="MPT",
    names=("MPT", "Mpt"),
    uses_alibi=lambda config: True,
    rule=_mpt_rule,
    check=_check_mpt,
)

FAMILIES = (BLOOM, FALCON, MPT)


def family_of(architecture: str) -> Family | None:
    """Return the family of an architecture such as "BloomForCausalLM", or None."""
    return next((family for family in FAMILIES if family.has(architecture)), None)

"""The model families of the plugin, and the slopes of their layers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _checks
from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.scaling import Scaling


def model_slopes(rule: ModelSlopes, scaling: Scaling | None) -> NDArray[np.float32]:
    """Return the slopes of all heads, (heads,)."""
    slopes: NDArray[np.float32] = rule.slopes(scaling)
    return slopes[0, :, 0]


def process_slopes(
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
        name: the family's name in messages; its architectures' names begin with it, capitalized.
        uses_alibi: a function of a configuration: whether its model has ALiBi.
        rule: a function of a configuration: the slopes that its model was trained with.
        corrects_gelu: whether vLLM's GELU differs from the family's.
    """

    name: str
    uses_alibi: Callable[[Any], bool]
    rule: Callable[[Any], ModelSlopes]
    corrects_gelu: bool = False

    def has(self, architecture: str) -> bool:
        """Return whether an architecture belongs to this family, with any head."""
        return re.fullmatch(rf"{self.name.title()}(For\w+|Model)", architecture) is not None


BLOOM = Family(
    name="BLOOM",
    uses_alibi=lambda config: True,
    rule=lambda config: ModelSlopes.for_bloom(config.num_attention_heads),
    corrects_gelu=True,
)
FALCON = Family(
    name="Falcon",
    uses_alibi=lambda config: bool(getattr(config, "alibi", False)),
    rule=lambda config: ModelSlopes.for_falcon(
        config.num_attention_heads, config.hidden_size // config.num_attention_heads
    ),
)
FAMILIES = (BLOOM, FALCON)


def find_family(architecture: str) -> Family | None:
    """Return the family of an architecture such as "BloomForCausalLM", or None."""
    return next((family for family in FAMILIES if family.has(architecture)), None)

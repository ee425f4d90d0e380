"""vLLM's BLOOM with stretched slopes and BLOOM's own GELU."""

from __future__ import annotations

from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.models import bloom

from ntk_alibi.engines.vllm.families import BLOOM
from ntk_alibi.engines.vllm.models.stretching import stretch


class BloomForCausalLM(bloom.BloomForCausalLM):  # type: ignore[misc]
    """BLOOM as vLLM computes it, but for slopes and GELU.

    BLOOM was trained with the tanh form of GELU, and vLLM computes the erf form.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        settings = stretch(self, vllm_config, BLOOM)
        if settings.gelu == "erf":
            return
        for part in self.modules():
            if isinstance(part, bloom.BloomMLP):
                _check_gelu(part.gelu_impl)
                part.gelu_impl = nn.GELU(approximate="tanh")


def _check_gelu(activation: nn.Module) -> None:
    """Check that what is replaced is a GELU, and not, say, one with scales of a quantization."""
    if type(activation).__name__ not in ("GELU", "GELUTanh"):
        raise RuntimeError(
            "this vLLM is not what ntk-alibi's plugin expects: BLOOM's activation is "
            f'{activation!r}; --hf-overrides \'{{"bloom_gelu": "erf"}}\' leaves it as it is'
        )

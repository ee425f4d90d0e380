"""vLLM's Falcon with stretched slopes."""

from __future__ import annotations

from vllm.config import VllmConfig
from vllm.model_executor.models import falcon

from ntk_alibi.engines.vllm.families import FALCON
from ntk_alibi.engines.vllm.models.stretching import stretch


class FalconForCausalLM(falcon.FalconForCausalLM):  # type: ignore[misc]
    """Falcon as vLLM computes it, but for slopes; one with rotary positions stays as it is."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        if FALCON.uses_alibi(self.config):
            stretch(self, vllm_config, FALCON)

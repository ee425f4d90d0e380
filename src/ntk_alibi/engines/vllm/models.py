"""vLLM's BLOOM and Falcon with stretched slopes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models import bloom, falcon

from ntk_alibi.engines.vllm.families import (
    BLOOM,
    FALCON,
    Family,
    model_slopes,
    process_slopes,
)
from ntk_alibi.engines.vllm.settings import (
    EngineSettings,
    check_backend,
    check_whole_contexts,
    read_settings,
)

_logger = init_logger("vllm.ntk_alibi")


def stretch(model: nn.Module, vllm_config: VllmConfig, family: Family) -> EngineSettings:
    """Give the layers of a model their stretched slopes, and return its settings.

    Every layer's backend is checked, even without a scaling. Slopes are written in place into the
    tensor that the backend's kernels read, so that no other model changes.
    """
    config = vllm_config.model_config.hf_config
    settings, rule = read_settings(config, family), family.rule(config)
    check_whole_contexts(vllm_config.parallel_config)
    place = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
    plain, stretched = (
        process_slopes(model_slopes(rule, scaling), *place) for scaling in (None, settings.scaling)
    )
    layers = [layer for layer in model.modules() if isinstance(layer, Attention)]
    for layer in layers:
        name = layer.layer_name
        check_backend(layer.attn_backend.get_name())
        held: Any = getattr(layer.impl, "alibi_slopes", None)
        if not isinstance(held, torch.Tensor):
            raise RuntimeError(
                f"this vLLM is not what ntk-alibi's plugin expects: the backend of {name} holds no "
                f"tensor of slopes, got {held!r}"
            )
        found = held.cpu().numpy()
        if found.shape != plain.shape or not np.allclose(found, plain, rtol=1e-5, atol=0.0):
            raise RuntimeError(
                f"this vLLM is not what ntk-alibi's plugin expects: {name} has the slopes "
                f"{found.tolist()} instead of {plain.tolist()}"
            )
        held.copy_(torch.from_numpy(stretched))
    _logger.info(
        "ntk_alibi: %s with %r on %d layers of this process", family.name, settings, len(layers)
    )
    return settings


class BloomForCausalLM(bloom.BloomForCausalLM):  # type: ignore[misc]
    """vLLM's BLOOM with other slopes, and with the GELU that BLOOM was trained with.

    That is the tanh form; vLLM computes the erf form.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        settings = stretch(self, vllm_config, BLOOM)
        if settings.gelu == "erf":
            return
        for part in self.modules():
            if isinstance(part, bloom.BloomMLP):
                if type(part.gelu_impl).__name__ not in ("GELU", "GELUTanh"):  # scales of weights
                    raise RuntimeError(
                        "this vLLM is not what ntk-alibi's plugin expects: BLOOM's activation is "
                        f'{part.gelu_impl!r}; --hf-overrides \'{{"bloom_gelu": "erf"}}\' leaves it '
                        "as it is"
                    )
                part.gelu_impl = nn.GELU(approximate="tanh")


class FalconForCausalLM(falcon.FalconForCausalLM):  # type: ignore[misc]
    """vLLM's Falcon with other slopes; a Falcon with rotary positions stays as it is."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        if FALCON.uses_alibi(self.config):
            stretch(self, vllm_config, FALCON)

"""Slopes of a model that vLLM has just made."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models.utils import extract_layer_index

from ntk_alibi.engines.vllm import checks
from ntk_alibi.engines.vllm.families import Family, slopes_of_layer, slopes_of_process
from ntk_alibi.engines.vllm.settings import EngineSettings, settings_of

_logger = init_logger("vllm.ntk_alibi")


def stretch(model: nn.Module, vllm_config: VllmConfig, family: Family) -> EngineSettings:
    """Give the layers of a model their stretched slopes, and return its settings.

    Every layer's backend is checked, whether there is a scaling or not. Slopes are written into the
    tensor that the backend's kernels read, in place, so that they are those of this model alone.
    """
    config = vllm_config.model_config.hf_config
    settings, rule = settings_of(config, family), family.rule(config)
    checks.whole_contexts(vllm_config.parallel_config)
    place = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
    layers = [layer for layer in model.modules() if isinstance(layer, Attention)]
    for layer in layers:
        name, number = layer.layer_name, extract_layer_index(layer.layer_name)
        checks.backend(layer.attn_backend.get_name())
        held: Any = getattr(layer.impl, "alibi_slopes", None)
        if not isinstance(held, torch.Tensor):
            raise RuntimeError(
                f"this vLLM is not what ntk-alibi's plugin expects: the backend of {name} holds no "
                f"tensor of slopes, got {held!r}"
            )
        plain = slopes_of_process(slopes_of_layer(rule, None, number), *place)
        checks.same_slopes(name, held.cpu().numpy(), plain)
        stretched = slopes_of_process(slopes_of_layer(rule, settings.scaling, number), *place)
        held.copy_(torch.from_numpy(stretched))
    _logger.info(
        "ntk_alibi: %s with %r on %d layers of this process", family.name, settings, len(layers)
    )
    return settings

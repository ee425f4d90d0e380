"""The entry point of the plugin, which vLLM calls in each of its processes."""

from __future__ import annotations

import functools
from typing import Any

from ntk_alibi import _installed
from ntk_alibi.engines.vllm.families import find_family
from ntk_alibi.engines.vllm.settings import (
    check_backend,
    check_no_settings,
    check_whole_contexts,
    read_settings,
)

#: The class of each architecture, by name: importing it here would initialize CUDA, and a process
#: that has done so cannot fork.
MODELS = {
    "BloomForCausalLM": "models:BloomForCausalLM",
    "FalconForCausalLM": "models:FalconForCausalLM",
}

#: The method of vLLM's VllmConfig that checks a model's configuration before anything is loaded.
_METHOD = "try_verify_and_update_config"


def register() -> None:
    """Register the model classes, and check configurations when an engine starts.

    Raises:
        RuntimeError: this version of vLLM checks its configuration in another way.
    """
    with _installed.needed_by("ntk_alibi.engines.vllm"):
        from vllm import ModelRegistry
        from vllm.config import VllmConfig

    for architecture, name in MODELS.items():
        ModelRegistry.register_model(architecture, f"ntk_alibi.engines.vllm.{name}")
    _check_before_vllm(VllmConfig)


def _check_before_vllm(config_class: Any) -> None:
    """Make vLLM check our settings before its own."""
    stock = getattr(config_class, _METHOD, None)
    if stock is None:
        raise RuntimeError(
            f"vllm is not what ntk-alibi's plugin expects: VllmConfig has no {_METHOD}. Install "
            f"another by {_installed.install_line('vllm')}, or set "
            "VLLM_PLUGINS to leave the plugin out"
        )
    if hasattr(stock, "__wrapped__"):
        return

    @functools.wraps(stock)
    def check_both(self: Any) -> Any:
        check_configuration(self)
        return stock(self)

    setattr(config_class, _METHOD, check_both)


def check_configuration(vllm_config: Any) -> None:
    """Refuse settings that the plugin cannot apply, before anything is loaded.

    Args:
        vllm_config: vLLM's VllmConfig. The choice of BLOOM's GELU is written into the model's
            configuration, because vLLM names its stored compilations by a hash of it, and without
            the plugin it compiles another GELU.

    Raises:
        ValueError: a setting is wrong, or vLLM cannot compute with it.
    """
    model = vllm_config.model_config
    if model is None or model.architecture is None:
        return
    family, config = find_family(model.architecture), model.hf_config
    if family is None or not family.uses_alibi(config):
        check_no_settings(config, model.architecture)
        return
    settings = read_settings(config, family)
    attention = getattr(vllm_config, "attention_config", None)
    per_kind = getattr(attention, "backend_per_kind", None) or {}
    for chosen in (getattr(attention, "backend", None), *per_kind.values()):
        if chosen is not None:
            check_backend(chosen.name)
    check_whole_contexts(vllm_config.parallel_config)
    if family.corrects_gelu:
        config.bloom_gelu = settings.gelu

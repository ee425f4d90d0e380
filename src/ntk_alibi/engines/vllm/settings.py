"""The plugin's settings, from a model's configuration, `--hf-overrides` and vLLM's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from ntk_alibi import _checks, _names
from ntk_alibi.engines.vllm.families import FAMILIES, Family
from ntk_alibi.methods import (
    ENTRY,
    ORIGINAL,
    read_entry,
    scaling_and_log_n,
    train_length_or_default,
)
from ntk_alibi.scaling import Scaling, checked_scaling, is_dynamic

#: The plugin's settings.
_READ = (ENTRY, "bloom_gelu")

#: Keys of the entry that vLLM's kernels do not support. What "attention" chooses, vLLM chooses.
_WITHOUT_KERNEL = ("window", "sink", "causal_block", "log_n")

#: Wrong names that people use for these settings.
_MISPLACED = ("scaling", "method")

#: Backends whose kernels read a layer's slopes, by vLLM's names. Other backends refuse slopes, or
#: accept and ignore them, such as FLASHINFER and TURBOQUANT.
BACKENDS = (
    "CPU_ATTN",
    "FLASH_ATTN",
    "ROCM_AITER_FA",
    "ROCM_AITER_UNIFIED_ATTN",
    "ROCM_ATTN",
    "ROCM_SEGMENTED_ATTN",
    "TRITON_ATTN",
)

_STATIC = "'interpolation:F', 'ntk:F', 'flat:F' or 'max-bias:F'"


@dataclass(frozen=True)
class EngineSettings:
    """The checked settings of one model.

    Attributes:
        scaling: a static scaling, or None.
        gelu: BLOOM's activation: "tanh", with which it was trained, or "erf" as in vLLM.
    """

    scaling: Scaling | None
    gelu: Literal["tanh", "erf"] = "tanh"


def read_settings(config: Any, family: Family) -> EngineSettings:
    """Return the settings in a model's configuration.

    Raises:
        ValueError: a setting is wrong, or vLLM cannot compute with it.
    """
    # vLLM would ignore misspelled settings.
    given = [name for name in _MISPLACED if getattr(config, name, None) is not None]
    for name in (*given, *_misspelled(config)):
        raise ValueError(
            f"settings for vLLM must be named {' or '.join(_READ)}, got {name}, which vLLM "
            "would ignore: set it to null in --hf-overrides if the model's configuration has it"
        )
    scaling = read_scaling(config)
    if is_dynamic(scaling):
        raise ValueError(
            f"method must not depend on lengths in vLLM, got {scaling!r}: a layer has one "
            "slope a head for all requests, and cached keys are shared between them. "
            f"Take {_STATIC} with the factor for your longest text, or na.patch in transformers"
        )
    gelu = getattr(config, "bloom_gelu", None)
    if gelu is None:
        return EngineSettings(scaling)
    if not family.corrects_gelu:
        raise ValueError(
            f"bloom_gelu must be left out for {family.name}, whose GELU vLLM computes as it is, "
            f"got {gelu!r}"
        )
    _checks.choice("bloom_gelu", gelu, ("tanh", "erf"))
    return EngineSettings(scaling, gelu)


def read_scaling(config: Any) -> Scaling | None:
    """Return the scaling of the entry in a configuration, `config.ntk_alibi`, or None.

    Raises:
        ValueError: the entry is wrong, or vLLM's kernels do not support it. vLLM shows no other
            class of error legibly.
    """
    try:
        entry = read_entry(config) or {}
        for name in _WITHOUT_KERNEL:
            if entry.get(name):
                raise ValueError(
                    f"{name} must be left out in vLLM, whose kernels have nothing that it stands "
                    f"for, got {entry[name]!r}: set it to null in --hf-overrides, or use na.patch "
                    "in transformers"
                )
        length = train_length_or_default(config)
        scaling, log_n = scaling_and_log_n(entry.get("method", ORIGINAL), None, length)
        checked_scaling(scaling, name="method")
        _checks.check_equal("log_n", log_n, None, "in vLLM, whose kernels have no such factor")
    except (TypeError, ValueError) as error:
        raise ValueError(f"config.{ENTRY} must be a patch for vLLM: {error}") from None
    return cast("Scaling | None", scaling)


def _misspelled(config: Any) -> list[str]:
    """Return the attributes of a configuration that look like misspelled settings."""
    return [
        name
        for name, value in vars(config).items()
        if value is not None
        and name not in _READ
        and (name.startswith("alibi_") or _names.find_closest(name, _READ, similarity=0.8))
    ]


def check_no_settings(config: Any, architecture: str) -> None:
    """Refuse settings for a model that the plugin does not change.

    Raises:
        ValueError: the configuration has a setting of the plugin.
    """
    scaling = read_scaling(config)
    if scaling is not None:
        raise ValueError(
            f"{ENTRY} must be left out for {architecture} without ALiBi of a known family "
            f"({', '.join(family.name for family in FAMILIES)}), got {scaling!r}, which vLLM would "
            "ignore: set it to null in --hf-overrides"
        )


def check_backend(name: str) -> None:
    """Check that an attention backend reads slopes."""
    if name not in BACKENDS:
        raise ValueError(
            f"the attention backend must be one that reads ALiBi's slopes ({', '.join(BACKENDS)}), "
            f"got {name}, with which the model would have no positions: set --attention-backend, "
            "or attention_backend=..., to TRITON_ATTN on GPUs"
        )


def check_whole_contexts(parallel: Any) -> None:
    """Refuse contexts that are split over processes, where slopes get wrong distances."""
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        size = getattr(parallel, name, 1)
        if size != 1:
            raise ValueError(
                f"{name} must be 1 for a model with ALiBi, got {size}: vLLM counts distances "
                "within a process's part of the context. Use --tensor-parallel-size"
            )

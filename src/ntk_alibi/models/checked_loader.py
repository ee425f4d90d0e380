"""A loader that refuses checkpoints whose weights are missing or have wrong shapes.

It is a module because it needs transformers, which `loading` imports only when it loads.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM


class WholeCausalLM(AutoModelForCausalLM):
    """transformers' AutoModelForCausalLM, without random weights in place of missing ones."""

    @classmethod
    def outline(cls, name: str, **attention: str) -> Any:
        """Return the model of a checkpoint's configuration, whose weights are on "meta"."""
        config = AutoConfig.from_pretrained(name)
        with torch.device("meta"):
            return cls.from_config(config, **attention)  # type: ignore[no-untyped-call]

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *model_args: Any,
        **kwargs: Any,
    ) -> Any:
        """Load a model as transformers does.

        Raises:
            ValueError: the checkpoint lacks weights, or has weights of other shapes. Weights that
                are tied to others are not missing.
        """
        # Transformers' own error for shapes does not name the weights.
        kwargs |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        loaded: Any = super().from_pretrained(pretrained_model_name_or_path, *model_args, **kwargs)
        model, info = loaded
        problems = (("mismatched_keys", "have other shapes"), ("missing_keys", "are missing"))
        for key, problem in problems:
            names = sorted(entry if isinstance(entry, str) else entry[0] for entry in info[key])
            if names:
                raise ValueError(f"{len(names)} weights {problem}, first {names[0]}")
        return model

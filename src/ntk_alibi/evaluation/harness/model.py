"""A Hugging Face model of the harness with patched attention: `--model ntk_alibi`.

Importing this module registers it: the harness has no entry points for models of other packages.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from importlib.metadata import version
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM

from ntk_alibi import _checks, _names
from ntk_alibi.evaluation.comparing.length_study import weights_digest
from ntk_alibi.integrations import patch
from ntk_alibi.integrations.settings import ATTENTIONS
from ntk_alibi.methods import ORIGINAL, as_method, method_name, read_entry
from ntk_alibi.models.checked_loader import WholeCausalLM
from ntk_alibi.models.loading import (
    NANO_BLOOM,
    check_usable,
    checkpoint_name,
    reading,
    train_length_or_warn,
)
from ntk_alibi.scaling import is_dynamic

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import CacheHook

#: Stands for "no limit" where the harness needs an integer.
UNLIMITED = 2**31 - 1

#: The key in a store of answers at which the digest of its model is.
OWNER = "ntk_alibi model"

PACKAGES = ("ntk-alibi", "lm_eval", "transformers", "torch")


@register_model("ntk_alibi")
class StretchedLM(HFLM):  # type: ignore[misc]
    """A stretched ALiBi model for lm-evaluation-harness.

    It cuts nothing off unless max_length is given; the harness's own model cuts the prompts of a
    BLOOM at 2048 tokens. The harness pads batches without a mask, so dynamic methods, which count
    tokens, take one text at a time.

    Args:
        pretrained: a folder, a name on the hub, or a model; by default the embedded nano BLOOM.
        method: the name of a method, such as "ntk:4", or what else `as_method` takes; by default
            the patch that the checkpoint was saved with, or "original".
        train_length: training length in tokens; by default the one in the model's config. A saved
            patch has its own.
        attention: attention implementation, as for `ntk_alibi.patch`; by default the saved one, or
            "fused".
        max_length: greatest number of tokens of an input; by default there is no limit.
        quiet: whether to hide the progress bars.
        **options: further arguments of the harness's HFLM.
    """

    AUTO_MODEL_CLASS = WholeCausalLM

    def __init__(
        self,
        pretrained: Any = None,
        *,
        method: Any = None,
        train_length: int | None = None,
        attention: Any = None,
        max_length: int | None = None,
        quiet: bool = False,
        **options: Any,
    ) -> None:
        if train_length is not None:
            _checks.integer("train_length", train_length, minimum=1)
        if max_length is not None:
            _checks.integer("max_length", max_length, minimum=2)
        named = as_method(method, train_length or 2)  # until the checkpoint tells the length
        if attention is not None:
            _checks.choice("attention", attention, ATTENTIONS)
        _check_options(options)
        _check_batches(named.scaling, options)
        self.quiet = quiet
        accelerator = torch.accelerator.current_accelerator()
        device = "cpu" if accelerator is None else accelerator.type  # the harness assumes CUDA
        options = {
            "dtype": "float32",
            "device": device,
            "max_length": max_length,
            "logits_cache": False,  # it mixes up continuations that begin alike
            **options,
        }
        if isinstance(pretrained, torch.nn.Module):
            super().__init__(pretrained, **options)
        else:
            name = checkpoint_name(pretrained)
            with reading(name):
                super().__init__(name, **options)
        check_usable(self.model)
        self.train_length = train_length or train_length_or_warn(self.config)
        if method is None and read_entry(self.config) is not None:
            if train_length is not None:
                raise ValueError(
                    "train_length must come with method for a checkpoint that was saved with a "
                    f"patch, got {train_length} alone"
                )
            self.patch = patch(self.model, attention=attention)
            self.method = method_name(self.patch.scaling)
            self.train_length = getattr(self.patch.scaling, "train_length", self.train_length)
            _check_batches(self.patch.scaling, options)
            return
        chosen = as_method(method, self.train_length)
        scaling = ORIGINAL if chosen.scaling is None else chosen.scaling
        self.patch = patch(self.model, scaling, attention=attention, log_n=chosen.log_n)
        self.method = chosen.name

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: Any = None) -> Any:
        """Make a model as the harness's command line does.

        The harness names results by the argument `pretrained`; without it, at random.
        """
        lm = super().create_from_arg_obj(arg_dict, additional_config)
        arg_dict.setdefault("pretrained", NANO_BLOOM)
        return lm

    @property
    def max_length(self) -> int:
        """The greatest number of tokens of an input."""
        return self._max_length or UNLIMITED

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and whether it is the greedy one."""
        answers: list[tuple[float, bool]] = super().loglikelihood(
            requests, disable_tqdm=disable_tqdm or self.quiet
        )
        return answers

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the text that is generated for each prompt."""
        answers: list[str] = super().generate_until(
            requests, disable_tqdm=disable_tqdm or self.quiet
        )
        return answers

    def get_model_info(self) -> dict[str, Any]:
        """Return the settings that the harness stores with every result, and ours."""
        return {
            **super().get_model_info(),
            "model_dtype": str(self.model.dtype),
            "method": self.method,
            "patch": repr(self.patch),
            "train_length": self.train_length,
            "max_length": self._max_length,
            "versions": {name: version(name) for name in PACKAGES},
        }

    @property
    def digest(self) -> str:
        """A digest of the weights, the patch in force and all settings."""
        info = [weights_digest(self.model), self.get_model_info()]
        text = json.dumps(info, default=str, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Take the harness's store of answers, which finds an answer by its request alone.

        Raises:
            ValueError: the store has answers of another model, method or setting.
        """
        stored = cache_hook.dbdict
        if stored is not None:
            digest = self.digest
            if stored.get(OWNER, None if len(stored) else digest) != digest:
                raise ValueError(
                    f"use_cache must be a file of answers of this model with {self.method} and "
                    f"these settings, got {stored.filename!r}, which has answers of another: take "
                    "one file for each"
                )
            stored[OWNER] = digest
        super().set_cache_hook(cache_hook)


def _check_batches(scaling: Any, options: Mapping[str, Any]) -> None:
    size = options.get("batch_size", 1)
    if is_dynamic(scaling) and str(size) != "1":
        raise ValueError(f"batch_size must be 1 with a dynamic method, got {size!r}")


def _check_options(options: Collection[str]) -> None:
    """Refuse misspelt arguments, which transformers would report as a damaged checkpoint."""
    ours, theirs = (signature(kind).parameters for kind in (StretchedLM, HFLM))
    for name in options:
        meant = _names.did_you_mean(name, ours.keys() - {"options"})
        if name in ("scaling", "factor"):  # as `patch` has them, and checkpoints
            meant = ": method names both, such as method=ntk:4"
        if meant and name not in theirs:
            raise ValueError(f"model_args must be arguments of the model, got {name!r}{meant}")

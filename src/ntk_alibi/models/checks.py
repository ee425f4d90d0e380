"""Checks of checkpoints and tokenizers: weights, and the settings of the configuration."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def name(model: Any) -> None:
    """Check the kind of a checkpoint's name."""
    if model is not None and not isinstance(model, str | os.PathLike):
        raise TypeError(
            f"model must be None, a folder or a name on the hub, got {type(model).__name__}"
        )


def tokenizer(value: Any) -> None:
    """Check that a tokenizer can be called with a text, and tells the texts of tokens."""
    if isinstance(value, type) or not (
        callable(value) and callable(getattr(value, "decode", None))
    ):
        raise TypeError(f"tokenizer must be the model's tokenizer, got {briefly(value)}")


def briefly(value: Any) -> str:
    """Describe a wrong argument, whose repr may be as long as a model's."""
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else type(value).__name__


@contextlib.contextmanager
def reachable(name: str) -> Iterator[None]:
    """Name the checkpoint where the hub does not give it, which transformers does not always do."""
    try:
        yield
    except OSError as error:
        if os.path.exists(name):
            raise
        raise OSError(
            f"{name!r} is not a local folder, and could not be loaded from the hub: {error}"
        ) from error


def whole(info: Mapping[str, Any]) -> None:
    """Check by transformers' loading information that all weights of a model were there.

    Transformers puts random numbers in place of weights that are missing. Weights that are tied to
    others are not missing.
    """
    for key, problem in (("mismatched_keys", "have other shapes"), ("missing_keys", "are missing")):
        names = sorted(entry if isinstance(entry, str) else entry[0] for entry in info[key])
        if names:
            raise ValueError(f"{len(names)} weights {problem}, first {names[0]}")


def usable(model: PreTrainedModel) -> None:
    """Check that a model's weights are finite and its configuration's ALiBi settings are valid.

    A patch replaces those settings, so nothing else would read them.
    """
    import torch

    from ntk_alibi.integrations.settings import of_config

    try:
        of_config(model.config)
    except (TypeError, ValueError) as error:
        raise ValueError(f"config of the model must hold valid ALiBi settings: {error}") from error
    for name, weights in model.named_parameters():
        if weights.is_floating_point() and not weights.is_meta and weights.numel():
            extremes = torch.stack(torch.aminmax(weights.detach()))
            if not extremes.isfinite().all():
                raise ValueError(f"model must have finite weights, got NaN or infinity in {name}")

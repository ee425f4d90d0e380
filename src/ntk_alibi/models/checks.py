"""Checks of checkpoints: files, weights, and the settings of the configuration."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextlib.contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn what transformers raises for a damaged checkpoint into a ValueError that names it.

    Transformers' readers do not check what they read. A damaged file gives an error of any type,
    such as SafetensorError, RuntimeError, KeyError or ZeroDivisionError.
    """
    try:
        yield
    except (ImportError, MemoryError, OSError):  # not for what the files hold
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"model must be a whole checkpoint that transformers can load, got {name!r}: {reason}"
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

"""Functions that load checkpoints: the embedded model, a folder, or a Hugging Face hub name."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ntk_alibi import _checks, _files, _installed
from ntk_alibi.methods import find_train_length, read_entry, train_length_or_default

if TYPE_CHECKING:
    import torch
    from transformers import GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase

    class GeneratingModel(PreTrainedModel, GenerationMixin):
        """What `load` returns, for type checkers: a PreTrainedModel alone does not generate."""

        def generate(self, *args: Any, **kwargs: Any) -> Any:
            """Generate tokens."""


#: The name of the nano BLOOM in commands.
NANO_BLOOM = "nano-bloom"

#: What a local model is, in errors.
FOLDER = "a folder with config.json, weights and tokenizer"

#: Seconds in which the hub must answer.
PATIENCE = 10.0


def nano_bloom_path() -> Path:
    """Return the folder of the nano BLOOM in the package; transformers can load it, too.

    Example:
        >>> from transformers import AutoModelForCausalLM
        >>> model = AutoModelForCausalLM.from_pretrained(nano_bloom_path())
        >>> model.config.model_type
        'bloom'
    """
    return Path(__file__).parent / "nano_bloom"


def checkpoint_name(model: str | os.PathLike[str] | None) -> str:
    """Return the name or path from which transformers loads a model.

    None and "nano-bloom" mean the nano BLOOM in the package. A folder called nano-bloom, such as
    training writes, takes precedence over it.
    """
    if model is not None and not isinstance(model, str | os.PathLike):
        raise TypeError(
            f"model must be None, a folder or a name on the hub, got {type(model).__name__}"
        )
    if model is None or (model == NANO_BLOOM and not os.path.exists(model)):
        return os.fspath(nano_bloom_path())
    return os.fspath(model)


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn errors for a checkpoint that is damaged or out of reach into one that names it."""
    _check_name(name)
    try:
        with _files.readable("a whole checkpoint that transformers can load", name):
            yield
    except OSError as error:  # transformers does not always name what the hub does not give
        if os.path.exists(name):
            raise
        raise _not_given(name, error) from error
    except ValueError as error:
        if sys.flags.optimize > 1:
            raise ValueError(
                "model must be loaded by a Python without -OO, or PYTHONOPTIMIZE=2, since "
                "transformers reads docstrings, which these remove"
            ) from error
        if not os.path.exists(name) or any(map(_is_of_tokenizer, os.listdir(name))):
            raise
        raise ValueError(
            f"model must be {FOLDER}, got {name!r}, which has no tokenizer: write it there with "
            f"tokenizer.save_pretrained({name!r})"
        ) from error


def _check_name(name: str) -> None:
    """Refuse what is neither a folder nor in reach, for which transformers would wait a minute."""
    if os.path.exists(name) or name.startswith((".", os.sep)):
        if not os.path.isfile(os.path.join(name, "config.json")):
            raise ValueError(f"model must be {FOLDER}, or a name on the hub, got {name!r}")
        return
    from huggingface_hub import constants, file_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        known = file_download.try_to_load_from_cache(name, "config.json")
        if not (constants.HF_HUB_OFFLINE or isinstance(known, str)):
            url = file_download.hf_hub_url(name, "config.json")
            file_download.get_hf_file_metadata(url, timeout=PATIENCE)
    except HFValidationError as error:
        raise ValueError(f"model must be {FOLDER}, or a name on the hub, got {name!r}") from error
    except HfHubHTTPError:
        return  # the hub answers, and transformers explains what
    except Exception as error:  # the client's library, and so the error's type, changed
        raise _not_given(name, error) from error


def _not_given(name: str, error: Exception) -> OSError:
    return OSError(f"{name!r} is not a local folder, and could not be loaded from the hub: {error}")


def _is_of_tokenizer(file: str) -> bool:
    """Return whether a file's name is one of a tokenizer."""
    return file.startswith(("tokenizer", "vocab", "merges", "spiece", "sentencepiece"))


def load(
    model: str | os.PathLike[str] | None = None, dtype: str | torch.dtype = "float32"
) -> tuple[GeneratingModel, PreTrainedTokenizerBase, int]:
    """Load a causal language model in evaluation mode, with its tokenizer and training length.

    A checkpoint that was saved with a patch is patched as its `config.ntk_alibi` has it.

    Args:
        model: a folder; a hub name such as "bigscience/bloom-560m"; None or "nano-bloom" for the
            nano BLOOM in the package.
        dtype: the dtype of the parameters: "float32", "bfloat16" or "float16", or torch's.

    Returns:
        (model, tokenizer, training length in tokens).

    Raises:
        TypeError: model is neither a folder nor a name.
        ValueError: model is a path without a checkpoint, or dtype is unknown; the checkpoint is
            damaged, lacks weights, has weights that are not finite, or its configuration has an
            invalid patch or an invalid training length.
        OSError: the hub does not have the model, or cannot be reached.
        ImportError: torch or transformers is not installed.

    Example:
        >>> from ntk_alibi.models import load
        >>> model, tokenizer, train_length = load("nano-bloom")
        >>> type(model).__name__, train_length
        ('BloomForCausalLM', 2048)
    """
    loaded, tokenizer = load_as(model, dtype, saved=True)
    return loaded, tokenizer, train_length_or_warn(loaded.config)


def load_as(
    model: str | os.PathLike[str] | None, dtype: str | torch.dtype, *, saved: bool
) -> tuple[GeneratingModel, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer; `saved`: the model follows the patch it was saved with."""
    with _installed.needed_by("load", "transformers"):
        import torch

        from ntk_alibi.models.checked_loader import WholeCausalLM

    named = str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype
    chosen = _checks.choice("dtype", named, ("float32", "bfloat16", "float16"))

    def make(name: str) -> Any:
        return WholeCausalLM.from_pretrained(name, dtype=getattr(torch, chosen))

    return _load(model, make, saved)


def train_length_or_warn(config: Any) -> int:
    """Return the training length in a model's config, or BLOOM's with a warning."""
    length = train_length_or_default(config)
    if find_train_length(config) is None:
        warnings.warn(
            f"the training length is {length}, which is BLOOM's, since the model's config has "
            "none: set config.seq_length, or state another train_length",
            stacklevel=3,
        )
    return length


def load_outline(
    model: str | os.PathLike[str] | None = None, *, saved: bool = False
) -> tuple[GeneratingModel, PreTrainedTokenizerBase]:
    """Do what `load_as` does without reading weights, which are on torch's device "meta".

    This takes little time and memory, so that a command can check its arguments before it loads.
    """
    with _installed.needed_by("load", "transformers"):
        from ntk_alibi.models.checked_loader import WholeCausalLM
    return _load(model, WholeCausalLM.outline, saved)


def _load(
    model: str | os.PathLike[str] | None, make: Callable[[str], Any], saved: bool
) -> tuple[GeneratingModel, PreTrainedTokenizerBase]:
    """Return the model that `make` loads, and its tokenizer."""
    from transformers import AutoTokenizer

    from ntk_alibi.integrations import patch

    name = checkpoint_name(model)
    with reading(name):
        tokenizer = AutoTokenizer.from_pretrained(name)
        loaded = make(name).eval()
    check_usable(loaded)
    if saved and read_entry(loaded.config) is not None:
        patch(loaded)
    return loaded, tokenizer


def check_usable(model: PreTrainedModel) -> None:
    """Check that a model's weights are finite."""
    import torch

    for name, weights in model.named_parameters():
        if weights.is_floating_point() and not weights.is_meta and weights.numel():
            extremes = torch.stack(torch.aminmax(weights.detach()))
            if not extremes.isfinite().all():
                raise ValueError(f"model must have finite weights, got NaN or infinity in {name}")

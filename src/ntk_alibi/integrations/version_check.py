"""The check of a version of transformers that the patches were not tested with.

A small random model of the same class and kind runs with and without a patch, and its attention
layers must return the same. The weights of the user's model, which may be elsewhere or not loaded
yet, are not needed. A patch that silently did nothing would not be found, but cannot be: a layer
without tokens raises.
"""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ntk_alibi.integrations import numeric_check, transformers_versions
from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.integrations.overriding import replaced
from ntk_alibi.integrations.settings import CONFIG_NAMES

#: Sizes of the small model, by the names that configurations have for them; others stay. The size
#: of a head stays, too.
SIZES = {
    "num_hidden_layers": 1,
    "num_layers": 1,
    "num_decoder_layers": 1,
    "vocab_size": 64,
    "d_ff": 64,
    "intermediate_size": 64,
    "ffn_hidden_size": 64,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
HEADS = 4
TOKENS = 12

_checked: set[tuple[type, str]] = set()


def check(family: Any, model: nn.Module, patch: Callable[[nn.Module], None]) -> None:
    """Check the code of a model's class, once for each kind of configuration, and warn once.

    T5's encoder and decoder are of one class, and so are two checks with one warning.

    Args:
        family: the model's family.
        model: the model, which stays as it is.
        patch: patches a model without scaling.

    Raises:
        RuntimeError: an output differs, or the small model does not run.
    """
    config = small_config(model.config)
    kind = type(model), config.to_json_string()
    if kind in _checked:
        return
    version = transformers_versions.transformers_version()
    low, high = transformers_versions.TRANSFORMERS_VERSIONS
    beyond = f"transformers {version} is not among the versions from {low} to below {high}"
    try:
        what = _compare(family, type(model), config, patch)
    except Exception as error:
        raise RuntimeError(
            f"{beyond} that the patches were tested with, and a small {type(model).__name__} does "
            f"not compute with a patch what it computes without: {error}; the model stays as it "
            "is, and a tested version of transformers would patch it"
        ) from error
    first = all(checked is not kind[0] for checked, _ in _checked)
    _checked.add(kind)
    if not first:
        return
    warnings.warn(
        f"{beyond} that the patches were tested with: a small random {type(model).__name__} was "
        f"compared with itself, patched, and is the same ({what})",
        stacklevel=6,
    )


def small_config(config: Any) -> Any:
    """Return a configuration of the same kind with few heads, one layer and few tokens."""
    small = copy.deepcopy(config)
    small._attn_implementation = None
    for name in CONFIG_NAMES:
        vars(small).pop(name, None)
    heads = config.num_attention_heads
    head_dim = config.hidden_size // heads
    for name, value in SIZES.items():
        if hasattr(small, name):
            setattr(small, name, value)
    if not hasattr(small, "d_kv"):
        small.hidden_size = HEADS * head_dim
    small.num_attention_heads = HEADS
    if (of_keys := getattr(config, "num_kv_heads", None)) not in (None, 1):
        small.num_kv_heads = HEADS if of_keys == heads else 2
    return small


def _compare(family: Any, kind: Any, config: Any, patch: Callable[[nn.Module], None]) -> str:
    """Compare a new model with itself, patched; return what was compared."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(0)
        model = kind._from_config(config, dtype=torch.float32).eval()
        layers = {"self-attention": family.layers(model)[0]}
        for crossing in family.crossing(model)[:1]:
            layers["cross-attention"] = crossing
        with torch.no_grad():
            for parameter in (x for y in layers.values() for x in y.parameters()):
                if parameter.ndim == 2:  # scores of about 1, so that all of them matter
                    parameter.normal_(std=parameter.shape[1] ** -0.5)
            with replaced(family.while_compared(model)):
                stock = _outputs(model, layers, family)
            patch(model)
            ours = _outputs(model, layers, family)
    allowed = family.compared_within
    for name, theirs in stock.items():
        mine = ours[name]
        if mine.shape != theirs.shape:
            raise ValueError(f"{name} has shape {tuple(mine.shape)}, not {tuple(theirs.shape)}")
        # Outputs that are all 0 would compare nothing.
        apart = numeric_check.difference(theirs, mine) if theirs.any() else math.nan
        if not apart <= allowed:  # NaN, too
            raise ValueError(
                f"{name} differs by {apart:.1e} of the greatest output, more than {allowed:.0e}"
            )
    return ", ".join(stock)


def _outputs(model: Any, layers: dict[str, nn.Module], family: Any) -> dict[str, torch.Tensor]:
    """Return the outputs of layers for padded rows and, for a decoder, with a cache."""
    ids = torch.arange(2 * TOKENS).reshape(2, TOKENS) % 61 + 2
    mask = torch.ones_like(ids)
    mask[0, -3:] = mask[1, :4] = 0
    causal = family.is_causal(model)
    beside: dict[str, Any] = {}
    if "cross-attention" in layers:
        generator = torch.Generator().manual_seed(1)
        states = torch.randn(2, 7, model.config.hidden_size, generator=generator)
        seen = torch.ones(2, 7, dtype=torch.long)
        seen[1, 5:] = 0
        beside = {"encoder_hidden_states": states, "encoder_attention_mask": seen}
    found: dict[str, torch.Tensor] = {}

    def run(name: str, real: torch.Tensor, **given: Any) -> None:
        with contextlib.ExitStack() as hooks:
            for kind, layer in layers.items():

                def keep(_: Any, __: Any, output: Any, kind: str = kind) -> None:
                    found[f"{kind} {name}"] = numeric_check.main_output(output)[real != 0]

                hooks.enter_context(layer.register_forward_hook(keep))
            model(**given, **beside)

    alone = {"use_cache": False} if causal else {}
    run("with padding", mask, input_ids=ids, attention_mask=mask, **alone)
    if causal:
        left = mask.clone()
        left[0] = 1
        # Imported here because families of remote code need no transformers.
        from transformers import DynamicCache, EncoderDecoderCache

        cache: Any = DynamicCache()
        cache = EncoderDecoderCache(cache, DynamicCache()) if beside else cache
        kept = {CACHE: cache, "use_cache": True}
        prompt = left[:, :-2]
        run("of a prompt", prompt, input_ids=ids[:, :-2], attention_mask=prompt, **kept)
        rest = left[:, -2:]
        run("of two tokens after it", rest, input_ids=ids[:, -2:], attention_mask=left, **kept)
    return found

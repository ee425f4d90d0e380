"""Comparison of attention layers with themselves, patched: outputs tell code that changed.

The code of families outside transformers comes with the weights, in a class of each revision. Names
of parameters would say little, and hashes of source too much: what counts is what a layer computes.
The first attention layer of the model runs with and without a patch.

For versions of transformers that the patches were not tested with, a small random model of the same
class and kind runs instead, and its attention layers must return the same but for rounding. What
rounding may change is measured: the stock model runs once more, with each weight changed by up to
one rounding. The weights of the user's model, which may be elsewhere or not loaded yet, are not
needed. A patch that silently did nothing would not be found, but cannot be: a layer without tokens
raises.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ntk_alibi.integrations import transformers_versions
from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.integrations.classes import stock_class
from ntk_alibi.integrations.forwards import as_stock
from ntk_alibi.integrations.overriding import in_evaluation, replaced
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.methods import ENTRY

#: The greatest difference to a model's own layer, in units of its greatest output.
TOLERANCE = 1e-3

#: Sizes of the small model, by the names that configurations have for them; others stay. The size
#: of a head stays, too.
SIZES = {
    "num_hidden_layers": 2,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "vocab_size": 64,
    "d_ff": 64,
    "intermediate_size": 64,
    "ffn_hidden_size": 64,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
#: ALiBi's slopes of so many heads, and distances of so few tokens, are not rounded by bfloat16.
HEADS = 4
TOKENS = 12

#: How many times as far as by one rounding of each weight outputs may be apart: a patch adds the
#: same products in another order. Measured, all families, heads of 8 to 128 channels: 0.2 to 1.8.
ROUNDINGS = 8

#: What is run with a cache, after one another: names and columns.
STEPS = {
    "a prompt": slice(0, TOKENS - 3),
    "two tokens": slice(TOKENS - 3, TOKENS - 1),
    "one token": slice(TOKENS - 1, TOKENS),
}

#: What layers return for real tokens, by the names of a layer and of a call.
Outputs = dict[tuple[str, str], torch.Tensor]

_checked: set[tuple[type, str]] = set()


class _Reached(Exception):  # noqa: N818 - no error
    """Ends a forward pass at the first attention layer, with the arguments of that layer."""


def example(model: Any) -> dict[str, Any]:
    """Return random input_ids, and an attention_mask with padding behind and before."""
    names = inspect.signature(stock_class(model).forward).parameters
    tables = [x for x in model.modules() if isinstance(x, nn.Embedding)]
    if not {"input_ids", "attention_mask"} <= set(names) or not tables:
        raise ValueError(
            f"example must be given for the family of {type(model).__name__}, which has no "
            "embeddings, or whose forward does not take input_ids and attention_mask"
        )
    table = max(tables, key=lambda x: x.num_embeddings)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(table.num_embeddings, (2, 24), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, 16:] = mask[1, :6] = 0
    device = table.weight.device
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


def compare_layer(family: Any, model: nn.Module, patch: Callable[[nn.Module], None]) -> None:
    """Patch a model, and compare its first attention layer with its own forward.

    Args:
        family: the model's family.
        model: the model, without patches.
        patch: patches it without scaling; the caller takes that back if this raises.

    Raises:
        RuntimeError: the outputs differ, or a layer did not run.
    """
    if any(x.is_meta for x in model.parameters()):
        return  # parameters have no values
    layer, given = family.layers(model)[0], family.example(model)
    with in_evaluation(model):
        with replaced(family.while_compared(model)), as_stock():
            stock = _output(family, model, layer, given, "its own code")
        patch(model)
        ours = _output(family, model, layer, given, "the patch")
    what = f"{type(layer).__name__}.forward of {type(layer).__module__}"
    if stock.shape != ours.shape:
        raise RuntimeError(
            f"{what} must return what the patch of {family.name} expects, got shape "
            f"{tuple(stock.shape)} where the patch has {tuple(ours.shape)}: the model's code is of "
            "another revision, and the model stays as it is"
        )
    real = given.get("attention_mask")
    if isinstance(real, torch.Tensor) and stock.shape[:2] == real.shape:
        stock, ours = stock[real != 0], ours[real != 0]  # padded queries may see anything
    apart = difference(stock, ours)
    allowed = max(family.compared_within, 8 * torch.finfo(stock.dtype).eps)
    if not apart <= allowed:  # NaN, too
        raise RuntimeError(
            f"{what} must compute what the patch of {family.name} does without scaling, but on "
            f"{given_text(given)} the outputs differ by {apart:.1e} of the greatest one, "
            f"more than {allowed:.0e}: the model's code is of another revision, and the model "
            "stays as it is"
        )


def difference(stock: torch.Tensor, ours: torch.Tensor) -> float:
    """Return the greatest difference of outputs, in units of the greatest stock one."""
    most = float(stock.double().abs().max())
    return float((stock.double() - ours.double()).abs().max()) / max(most, 1e-30)


def main_output(output: Any) -> torch.Tensor:
    """Return the output of a layer, which may be the first item of what its forward returns."""
    while not isinstance(output, torch.Tensor):
        output = output[0]
    return output


def given_text(given: dict[str, Any]) -> str:
    """Return words for the arguments of an example."""
    sizes = [f"{k} {tuple(x.shape)}" for k, x in given.items() if isinstance(x, torch.Tensor)]
    return f"random {' and '.join(sizes)}" if sizes else "its example"


def _output(
    family: Any, model: nn.Module, layer: nn.Module, given: dict[str, Any], whose: str
) -> torch.Tensor:
    """Return what the first attention layer returns; the rest of the model does not run."""

    def stop(_: nn.Module, __: Any, output: Any) -> None:
        raise _Reached(output)

    try:
        with layer.register_forward_hook(stop), torch.no_grad():
            model(**given)
    except _Reached as reached:
        return main_output(*reached.args).detach().clone()
    except Exception as error:
        raise RuntimeError(
            f"{type(layer).__name__} of {family.name} must run on {given_text(given)}, by which a "
            f"patch is compared with the model, but {whose} raised {error!r}: the model stays as "
            "it is"
        ) from error
    raise RuntimeError(
        f"model must call its attention layer {type(layer).__name__}, got a forward of "
        f"{type(model).__name__} that did not: the model stays as it is"
    )


def compare_small_model(family: Any, model: nn.Module, patch: Callable[[nn.Module], None]) -> None:
    """Check the code of a model's class, once for each kind of configuration, and warn once.

    T5's encoder and decoder are of one class, whose warning is of both.

    Args:
        family: the model's family.
        model: the model, which stays as it is.
        patch: patches a model without scaling.

    Raises:
        RuntimeError: an output differs, or the small model does not run.
    """
    config = small_config(model.config)
    kind = stock_class(model), config.to_json_string()
    if kind in _checked:
        return
    version = transformers_versions.transformers_version()
    low, high = transformers_versions.TRANSFORMERS_VERSIONS
    beyond = f"transformers {version} is not among the versions from {low} to below {high}"
    try:
        what = _compare(family, kind[0], config, patch)
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
    if callable(family.causal):  # such a stack may be either
        config.is_decoder = not config.is_decoder
        with contextlib.suppress(Exception):  # which a patch of such a stack will raise
            what += f"; {_compare(family, kind[0], config, patch)}"
    warnings.warn(
        f"{beyond} that the patches were tested with: a small random {type(model).__name__} was "
        f"compared with itself, patched, and is the same up to rounding ({what})",
        stacklevel=4,
    )


def small_config(config: Any) -> Any:
    """Return a configuration of the same kind with few heads, two layers and few tokens."""
    small = copy.deepcopy(config)
    small._attn_implementation = None
    vars(small).pop(ENTRY, None)
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
    """Compare a new model with itself, patched; return what was compared, and how closely."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        torch.manual_seed(0)
        model = kind._from_config(config, dtype=torch.float32).eval()
        family.check(model, Settings(None))
        for parameter in (x for y in _layers(family, model).values() for x in y.parameters()):
            if parameter.ndim == 2:  # scores that are not small, so that all of them matter
                parameter.normal_(std=parameter.shape[1] ** -0.5)
        rounded = copy.deepcopy(model)
        for parameter in rounded.parameters():
            eps = torch.finfo(parameter.dtype).eps
            parameter.mul_(1 + eps * torch.empty_like(parameter).uniform_(-1, 1))
        stock, other = (_stock_outputs(family, x) for x in (model, rounded))
        patch(model)
        ours = _outputs(family, model)
    allowed = ROUNDINGS * max(difference(stock[x], other[x]) for x in stock)
    allowed = min(allowed, TOLERANCE / 2)  # another choice of experts is no rounding
    for (layer, call), theirs in stock.items():
        name, mine = f"{layer} for {call}", ours[layer, call]
        if mine.shape != theirs.shape:
            raise ValueError(f"{name} has shape {tuple(mine.shape)}, not {tuple(theirs.shape)}")
        # Outputs that are all 0 would compare nothing.
        apart = difference(theirs, mine) if theirs.any() else math.nan
        if not apart <= allowed:  # NaN, too
            raise ValueError(
                f"{name} differs by {apart:.1e} of the greatest output, more than {allowed:.1e}"
            )
    causal = family.is_causal(model)
    return (
        f"{'decoder: ' if causal else 'encoder: '}"
        f"{' and '.join(dict.fromkeys(layer.partition(' ')[0] for layer, _ in stock))} of two "
        f"layers, to {allowed:.1e} of the greatest output, for padded rows and for one row without "
        f"a mask{', as a whole and by ' + ', '.join(STEPS) + ' with a cache' if causal else ''}"
    )


def _layers(family: Any, model: Any) -> dict[str, nn.Module]:
    """Return the attention layers of a model, by their names in messages."""
    kinds = {"self-attention": family.layers(model), "cross-attention": family.crossing(model)}
    return {
        f"{kind} of layer {i + 1}": x
        for kind, layers in kinds.items()
        for i, x in enumerate(layers)
    }


def _stock_outputs(family: Any, model: Any) -> Outputs:
    """Return what the layers of a model without a patch return."""
    with replaced(family.while_compared(model)):
        return _outputs(family, model)


def _outputs(family: Any, model: Any) -> Outputs:
    """Return what layers return for padded rows and for a row without a mask."""
    ids = torch.arange(2 * TOKENS).reshape(2, TOKENS) % 61 + 2
    mask = torch.ones_like(ids)
    mask[0, -3:] = mask[1, :4] = 0
    cases = {"padded rows": mask, "one row without a mask": None}
    causal, crosses = family.is_causal(model), len(family.crossing(model)) > 0
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(2, 7, model.config.hidden_size, generator=generator, dtype=torch.float32)
    seen = torch.ones(2, 7, dtype=torch.long)
    seen[1, 5:] = 0
    found: Outputs = {}

    def run(call: str, columns: slice, mask: torch.Tensor | None, **given: Any) -> None:
        rows = slice(1) if mask is None else slice(None)
        given["input_ids"] = ids[rows, columns]
        if crosses:
            given["encoder_hidden_states"] = states[rows]
        if mask is not None:
            given["attention_mask"] = mask[:, : columns.stop]
            if crosses:
                given["encoder_attention_mask"] = seen
        with contextlib.ExitStack() as hooks:
            for name, layer in _layers(family, model).items():

                def keep(_: Any, __: Any, output: Any, name: str = name) -> None:
                    real = slice(None) if mask is None else mask[:, columns] != 0
                    found[name, call] = main_output(output)[real]

                hooks.enter_context(layer.register_forward_hook(keep))
            model(**given)

    for case, padding in cases.items():
        run(case, slice(0, TOKENS), padding, **({"use_cache": False} if causal else {}))
    if causal:
        # Imported here because families of remote code need no transformers.
        from transformers import DynamicCache, EncoderDecoderCache

        mask[0] = 1  # no padding behind a prompt
        for case, padding in cases.items():
            cache: Any = DynamicCache()
            cache = EncoderDecoderCache(cache, DynamicCache()) if crosses else cache
            for step, columns in STEPS.items():
                call = f"{step} of {case}, with a cache"
                run(call, columns, padding, use_cache=True, **{CACHE: cache})
    return found

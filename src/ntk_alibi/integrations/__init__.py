"""Patches of live transformers models: the public `patch` and the families it knows."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, ParamSpec

from ntk_alibi import _installed
from ntk_alibi.biases.base import BiasObject
from ntk_alibi.positions.log_n import LogN
from ntk_alibi.scaling import Scaling

with _installed.needed_by("ntk_alibi.integrations"):
    from torch import nn

    from ntk_alibi.biases.slopes import ModelSlopes
    from ntk_alibi.integrations import families, own_bias
    from ntk_alibi.integrations.attend import Attend
    from ntk_alibi.integrations.family import REGISTERED, Family, register
    from ntk_alibi.integrations.patching import PatchHandle, apply, handles
    from ntk_alibi.integrations.settings import CONFIG_NAMES, scaling_and_log_n, settings_of
    from ntk_alibi.integrations.transformers_versions import (
        version_is_new_enough,
        version_is_tested,
    )

    if version_is_new_enough():
        # Where a later version lacks what this needs, the check of a patch says so.
        with suppress(*() if version_is_tested() else (ImportError, AttributeError)):
            from ntk_alibi.integrations import attn_implementation

            attn_implementation.register()


#: What helps with the one family whose remote code has the weights of transformers' own class.
MPT_OF_FOUNDRY = (
    "; transformers' MptForCausalLM, which is patched, loads its weights where its config has "
    "clip_qkv as a float: 6.0, not 6"
)

_P = ParamSpec("_P")


def _method_is_scaling(patch: Callable[_P, PatchHandle]) -> Callable[_P, PatchHandle]:
    """Say in the error of `patch(model, method=...)` how a method is given."""

    @functools.wraps(patch)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> PatchHandle:
        if "method" in kwargs:
            raise TypeError(
                "patch takes a method's name as its second argument, scaling: patch(model, "
                f"{kwargs['method']!r}), got method={kwargs['method']!r}"
            )
        return patch(*args, **kwargs)

    return call


@_method_is_scaling
def patch(
    model: nn.Module,
    scaling: Scaling | BiasObject | nn.Module | Mapping[Any, Any] | str | None = None,
    *,
    attention: Literal["fused", "eager", "traceable"] = "fused",
    window: int | None = None,
    sink: int = 0,
    causal_block: int | None = None,
    log_n: int | LogN | None = None,
    family: Family | None = None,
) -> PatchHandle:
    """Give a live ALiBi model another scaling and another attention, in place and revocably.

    Only this instance changes. It stays patched until `.undo()` of the returned handle, or until
    the end of a `with` block. Weights, config, generate(), caches, padding and gradient
    checkpointing keep working.

    Patches nest, also when a notebook's cell runs again: the newest one alone counts, undoing it
    brings the one before back, and undoing an older one leaves the newest in force. The repr of a
    handle says how many others there are, the very same call again gives a warning, `patched`
    returns all patches, and `unpatch` takes all back. A call that raises changes nothing. A deep
    copy or a pickle of a patched model is patched by patches of its own.

    save_pretrained, push_to_hub and Trainer write the newest patch into config.json, from which
    `from_pretrained(..., attn_implementation="ntk_alibi")` follows it (docs/serve.md).

    Args:
        model: a transformers BLOOM, MPT or Falcon (with alibi=True) model with any head, a model of
            another known family (docs/models.md), or a module that holds one, such as a
            SentenceTransformer, CrossEncoder or SparseEncoder.
        scaling: a scaling of slopes, a `Knee`, or None for plain ALiBi; with `layers` it applies to
            these layers, and the others keep plain ALiBi. (T5, its relatives and MPNet have no
            slopes to scale, and take None or a bias.) It may also be a dict for
            `scaling_from_config`, or a method's name on the command line, such as "ntk:4" or
            "flat:8:logn=0.5", whose training length is in the model's config. Or a bias in the
            place of the model's own, added to scaled scores in every family: a `BiasObject` for the
            model's heads; a torch module that returns one without hidden states, as in
            `ntk_alibi.torch.learned_bias`, which becomes the submodule `ntk_alibi_bias` of the
            model whose layers attend; or a dict of layers to them, whose other layers keep their
            own. It needs "fused" or "eager".
        attention: "fused" calls `ntk_alibi.attention`, which never forms a matrix of queries x
            keys. "eager" forms it: for BLOOM by transformers' own arithmetic (with scaling=None to
            the bit), for the others in float32. Calls with output_attentions are always "eager".
            "traceable" forms it, too, in plain torch on the masks that transformers makes, for
            torch.export, ONNX, AOTInductor and torch.compile(fullgraph=True). It takes scalings
            without lengths, knees and log_n.
        window: the number of tokens back (and ahead, in the encoder of a T5) that a token sees,
            itself included. The training length gives the "super baseline" of the papers: no
            distance that training did not show.
        sink: the number of first tokens that every token sees, too, as StreamingLLM has them: they
            move next to the window, since evicted tokens do not count in distances. (The `sink` of
            `ntk_alibi.attention` keeps true distances.) A `WindowCache` holds no more than the
            sinks and the window.
        causal_block: length of blocks; a token sees its own block up to itself, and the one before.
        log_n: a training length, or a `LogN`: scores grow with the logarithm of the number of keys
            that a query sees, in a cache or not. With attention="eager" this package then
            computes the scores, not transformers.
        family: the family of the model, for one that `ntk_alibi.integrations.register` does not
            know. One attention layer of such models is compared with itself when they are patched.

    Returns:
        The handle, a context manager with `.undo()`.

    Raises:
        TypeError: model is no torch module, scaling is no scaling, or family is no family.
        ValueError: the model has no ALiBi attention of a known family, has a forward method of its
            own, or has no layer that the scaling names; a bias is of other heads, or
            has values of single tokens; window or causal_block is below 1; sink is below 0, or
            given without window and causal_block; attention="traceable" comes with a scaling of
            lengths, a mask option, or a model made with attn_implementation="ntk_alibi"; at a call,
            a `WindowCache` holds other tokens than the patch shows.
        RuntimeError: the transformers version is unknown, its code is not what the patch expects,
            or a layer of a family outside transformers computes something else than its patch.

    A UserWarning is given when a scaling with per="sequence" meets cached keys, which were computed
    under the slopes of a shorter text; scalings with per="query" agree with their caches. It is
    also given when the newest patch in force is of the very same call.

    A model can also be patched from the start: after `import ntk_alibi.integrations`,
    `from_pretrained(..., attn_implementation="ntk_alibi")` makes a model that attends with "fused".
    It takes the scaling of its `config.alibi_scaling`, a scaling with `to_config`, its dict or a
    method's name, and `config.alibi_window`, `alibi_sink`, `alibi_causal_block`, `alibi_log_n` (a
    training length, or a dict of `LogN`'s arguments) and `alibi_attention` ("fused" or
    "eager"). All of them are keywords of from_pretrained, too, and
    save_pretrained keeps them. A model that is made without that name gives a warning if its config
    has them, since it does not follow them.
    Its generate() with a static cache needs no mask of queries x keys; for MPT and Falcon models
    that are patched later transformers builds one.

    Example:
        >>> import torch, transformers, ntk_alibi as na
        >>> sizes = {"vocab_size": 64, "hidden_size": 32, "n_layer": 1, "n_head": 4}
        >>> config = transformers.BloomConfig(**sizes)
        >>> model = transformers.BloomForCausalLM(config).eval()
        >>> ids = torch.arange(12)[None]
        >>> before = model(ids).logits
        >>> with na.patch(model, na.NTK(4.0)):
        ...     stretched = model(ids).logits
        >>> bool((stretched != before).any()), bool((model(ids).logits == before).all())
        (True, True)
    """
    chosen, targets = families.found(model, family)
    if not targets:
        known_ones = f"the family {chosen.name}" if chosen else "a known family"
        names = "" if chosen else f" ({families.listed(REGISTERED.values())})"
        parts = (getattr(part, "config", None) for part in model.modules())
        config = next((part for part in parts if part is not None), None)
        raise ValueError(
            f"model must hold ALiBi attention of {known_ones}{names}, got {type(model).__name__}, "
            "which a patch would leave as it is: docs/models.md has the models and recipes"
            + _what_helps(config)
        )
    assert chosen is not None
    bias = own_bias.bias_of_argument(scaling)
    given = scaling if bias is None else None
    checked, log_n = scaling_and_log_n(given, log_n, chosen.filled_length(targets[0]))
    settings = settings_of(
        checked,
        attention=attention,
        window=window,
        sink=sink,
        causal_block=causal_block,
        log_n=log_n,
        bias=bias,
    )
    handle = apply(model, chosen, targets, settings)
    logging.getLogger("ntk_alibi").info("%r", handle)
    return handle


def _what_helps(config: Any) -> str:
    """Return what helps with a class that ignores the ALiBi of its configuration, or nothing.

    The code of the checkpoint, such as JinaBERT's or MosaicBERT's, follows it.
    """
    if getattr(config, "model_type", None) == "mpt":
        return MPT_OF_FOUNDRY
    for name, value in (vars(config) if hasattr(config, "to_dict") else {}).items():
        if value == "alibi" or (name.startswith("alibi") and name not in CONFIG_NAMES):
            return (
                f"; its config has {name}={value!r}, which the checkpoint's own code follows: load "
                "it with trust_remote_code=True"
            )
    return ""


def patched(model: nn.Module) -> list[PatchHandle]:
    """Return the patches of a model that are in force, innermost last.

    Args:
        model: a torch module.

    Returns:
        A handle for each patch, with `.scaling`, `.attention`, `.log_n` and `.undo()`, whose repr
        has all choices; an empty list for a model without patches. The last one is in force. A
        model made with attn_implementation="ntk_alibi" has none by that.

    Raises:
        TypeError: model is no torch module.

    Example:
        >>> import transformers, ntk_alibi as na
        >>> sizes = {"vocab_size": 64, "hidden_size": 32, "n_layer": 1, "n_head": 4}
        >>> config = transformers.BloomConfig(**sizes)
        >>> model = transformers.BloomForCausalLM(config)
        >>> handles = na.patch(model), na.patch(model, na.NTK(4.0))
        >>> [patch.scaling for patch in na.patched(model)]
        [None, NTK(factor=4.0)]
    """
    family, targets = families.found(model)
    return [] if family is None else handles(family, targets)


def unpatch(model: nn.Module) -> None:
    """Take back all patches of a model, also those whose handles are gone.

    Args:
        model: a torch module; one without patches stays as it is.

    Raises:
        TypeError: model is no torch module.

    Example:
        >>> import transformers, ntk_alibi as na
        >>> sizes = {"vocab_size": 64, "hidden_size": 32, "n_layer": 1, "n_head": 4}
        >>> config = transformers.BloomConfig(**sizes)
        >>> model = transformers.BloomForCausalLM(config)
        >>> handle = na.patch(model, na.NTK(4.0))
        >>> na.unpatch(model)
        >>> na.patched(model)
        []
    """
    for handle in reversed(patched(model)):
        handle.undo()


__all__ = [
    "Attend",
    "Family",
    "ModelSlopes",
    "PatchHandle",
    "patch",
    "patched",
    "register",
    "unpatch",
]

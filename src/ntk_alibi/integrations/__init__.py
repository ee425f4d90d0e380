"""Patches of live transformers models: the public `patch` and the families it knows."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal

from ntk_alibi import _installed
from ntk_alibi.biases.base import BiasObject
from ntk_alibi.positions.log_n import LogN
from ntk_alibi.scaling import Scaling

with _installed.needed_by("ntk_alibi.integrations"):
    from torch import nn

    from ntk_alibi.biases.slopes import ModelSlopes
    from ntk_alibi.integrations import families
    from ntk_alibi.integrations.attend import Attend
    from ntk_alibi.integrations.entry import entry_of
    from ntk_alibi.integrations.family import REGISTERED, Family, register
    from ntk_alibi.integrations.patching import PatchHandle, apply, handles, saved_entry
    from ntk_alibi.integrations.settings import (
        settings_of,
        warn_of_another_train_length,
        warn_of_silent_choices,
    )
    from ntk_alibi.methods import ENTRY, ORIGINAL


#: What helps with the one family whose remote code has the weights of transformers' own class.
MPT_OF_FOUNDRY = (
    "; transformers' MptForCausalLM, which is patched, loads its weights where its config has "
    "clip_qkv as a float: 6.0, not 6"
)


class _AsSaved:
    """The value of `method` where it is left out."""

    def __repr__(self) -> str:
        return "<as saved>"


AS_SAVED: Any = _AsSaved()


def patch(
    model: nn.Module,
    method: Scaling | BiasObject | nn.Module | Mapping[Any, Any] | str | None = AS_SAVED,
    *,
    attention: Literal["fused", "eager", "traceable"] | None = None,
    window: int | None = None,
    sink: int | None = None,
    causal_block: int | None = None,
    log_n: int | LogN | Mapping[str, Any] | None = None,
    family: Family | None = None,
) -> PatchHandle:
    """Give a live ALiBi model another scaling and another attention, in place and revocably.

    Only this instance changes. It stays patched until `.undo()` of the returned handle, the end of
    a `with` block, which gives back the patch before, or another patch, which takes the place of
    this one with all its settings. Weights, generate(),
    caches, padding and gradient checkpointing keep working. A call that raises changes nothing. A
    copy or a pickle of a patched model is patched by a patch of its own; layers that are copied, or
    shared with a model without patch, are not stretched there. Patched modules have a class of the
    same name, a subclass of their own one: patch before others replace or wrap a forward.

    The patch is written into the model's configuration, as `config.ntk_alibi`, a dict such as
    {"method": "ntk:4", "window": 4096}, which save_pretrained, push_to_hub and Trainer save. After
    from_pretrained, patch(model) follows it; undo() gives the configuration back.

    Args:
        model: a transformers BLOOM, MPT or Falcon (with alibi=True) model with any head, a model of
            another known family (docs/models.md), or a module that holds one, such as a
            SentenceTransformer, CrossEncoder or SparseEncoder.
        method: a method's name, as on the command line, such as "ntk:4" or "flat:8:logn=0.5", whose
            training length is in the model's config; "original" or None for the model's own slopes;
            a scaling; or a dict for `scaling_from_config`. A dynamic one has one factor for each
            row, by the number of its real tokens, those in the cache included; cached keys keep
            what they were computed with. Left out, it is what the model's configuration had when it
            was loaded or made, or "original". (T5, its relatives and MPNet have no slopes to scale,
            and take "original" or a bias.) Or a bias in the place of the model's own, added to
            scaled scores in every family: a `BiasObject` for the model's heads; a torch module that
            returns one without hidden states, as in `ntk_alibi.torch.learned_bias`, which becomes
            the submodule `ntk_alibi_bias` of the model whose layers attend; or a dict of layers to
            them, whose other layers keep their own. It needs "fused" or "eager", and is not written
            into the configuration.
        attention: "fused", the default, calls `ntk_alibi.attention`, which never forms a matrix of
            queries x keys. "eager" forms it: for BLOOM by transformers' own arithmetic (with
            "original" to the bit), for the others in float32. Calls with output_attentions are
            always "eager". "traceable" forms it, too, in plain torch on the masks that transformers
            makes, for torch.export, ONNX, AOTInductor and torch.compile(fullgraph=True). It takes
            static scalings and log_n.
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
        TypeError: model is no torch module, method is no method, or family is no family.
        ValueError: the model has no ALiBi attention of a known family, or a part whose forward
            others have replaced, or the configuration object of a model with another patch; a bias
            is of other heads, or has values of single tokens; window or causal_block is below 1;
            sink is below 0, or given without window and causal_block; attention="traceable" comes
            with a dynamic scaling or a mask option; config.ntk_alibi is wrong; at a call,
            arguments describe several texts in a row, or a `WindowCache` holds other tokens than
            the patch shows.
        RuntimeError: the transformers version is unknown, its code is not what the patch expects,
            or a layer of a family outside transformers computes something else than its patch; at
            a call, a layer of the model is called by a model without patch.

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
            "which a patch would leave as it is: help(ntk_alibi.integrations.register) says how to "
            "teach it another" + _what_helps(config)
        )
    assert chosen is not None
    options: dict[str, Any] = {
        "attention": attention,
        "window": window,
        "sink": sink,
        "causal_block": causal_block,
        "log_n": log_n,
    }
    options = {name: value for name, value in options.items() if value is not None}
    entry = None
    if method is AS_SAVED:
        method = None
        entry, *others = map(saved_entry, targets)
        plain = {"method": ORIGINAL}
        _check_same(f"config.{ENTRY}", entry or plain, [other or plain for other in others])
    if entry is not None:
        options = {**entry, **options}
        method = options.pop("method", None)
    saved_length = options.pop("train_length", None)
    lengths = [saved_length]
    if saved_length is None:
        lengths = [chosen.filled_length(target) for target in targets]
    try:
        settings, *rest = (settings_of(method, length, **options) for length in lengths)
        _check_same("method", settings, rest)
        for target in targets:
            chosen.check_fit(target, settings)
    except (TypeError, ValueError) as error:
        if entry is None:
            raise
        message = f"config.{ENTRY} must hold what na.patch takes, got {entry}: {error}"
        raise type(error)(message) from error
    if settings.bias is None and chosen.decoder:
        taken = lengths[0] if saved_length is None else None
        warn_of_silent_choices(targets[0].config, method, log_n, taken)
    if saved_length is None:
        warn_of_another_train_length(settings.scaling, chosen.stated_length(targets[0]))
    written = entry_of(settings, method, lengths[0])
    handle = apply(model, chosen, targets, settings, written)
    logger = logging.getLogger("ntk_alibi")
    logger.info("%r%s", handle, "" if entry is None else f", as config.{ENTRY} has it")
    if written is None:
        logger.warning("config.%s is not written: it cannot hold %r", ENTRY, settings)
    return handle


def _check_same(name: str, first: Any, others: list[Any]) -> None:
    """Refuse a module with models that one patch would stretch in different ways."""
    for other in others:
        if other != first:
            raise ValueError(
                f"{name} must be the same for all models that the module holds, got {first!r} and "
                f"{other!r}: patch each of them by itself"
            )


def _what_helps(config: Any) -> str:
    """Return what helps with a class that ignores the ALiBi of its configuration, or nothing.

    The code of the checkpoint, such as JinaBERT's or MosaicBERT's, follows it.
    """
    if getattr(config, "model_type", None) == "mpt":
        return MPT_OF_FOUNDRY
    for name, value in (vars(config) if hasattr(config, "to_dict") else {}).items():
        if value == "alibi" or (name.startswith("alibi")):
            return (
                f"; its config has {name}={value!r}, which the checkpoint's own code follows: load "
                "it with trust_remote_code=True"
            )
    return ""


def patched(model: nn.Module) -> list[PatchHandle]:
    """Return the patches of a model that are in force.

    Args:
        model: a torch module.

    Returns:
        One handle, with `.scaling`, `.attention`, `.log_n` and `.undo()`, whose repr has all
        choices; an empty list for a model without patch, and a handle for each patch of parts that
        were patched on their own.

    Raises:
        TypeError: model is no torch module.

    Example:
        >>> import transformers, ntk_alibi as na
        >>> sizes = {"vocab_size": 64, "hidden_size": 32, "n_layer": 1, "n_head": 4}
        >>> config = transformers.BloomConfig(**sizes)
        >>> model = transformers.BloomForCausalLM(config)
        >>> handle = na.patch(model, "ntk:4")
        >>> [patch.scaling for patch in na.patched(model)]
        [NTK(factor=4.0)]
    """
    return handles(model, families.found(model)[1])


def unpatch(model: nn.Module) -> None:
    """Take back the patches of a model, also those whose handles are gone.

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
    for handle in patched(model):
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

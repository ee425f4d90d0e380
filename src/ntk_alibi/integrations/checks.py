"""Checks of patched models: arguments, caches, groups, tracing and saved settings."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import nn

from ntk_alibi import _arrays
from ntk_alibi.masks import checked_attention_mask


def module(model: Any) -> None:
    """Check that a model to patch is a torch module."""
    if isinstance(model, nn.Module):
        return
    advice = ""
    if isinstance(model, str):
        advice = ": load it by transformers.AutoModelForCausalLM.from_pretrained(...)"
    elif isinstance(model, type):
        advice = ": pass an instance"
    elif callable(getattr(model, "undo", None)):
        advice = ": call its undo()"
    elif isinstance(getattr(model, "model", None), nn.Module):
        advice = ": pass its .model"
    elif isinstance(model, tuple) and model and isinstance(model[0], nn.Module):
        advice = ": pass its first item"
    raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}{advice}")


def one_block(*, undone: bool, entered: bool) -> None:
    """Check that a patch is in force, and in no `with` block yet, where one begins."""
    if undone or entered:
        state = "that was undone" if undone else "inside a block of its own"
        raise ValueError(
            f"patch must be in force and have one with block, got one {state}: call "
            "na.patch(model, ...) again"
        )


def ranks_of_patch(ranks: Any) -> Any:
    """Check that a patch has a group."""
    if ranks is None:
        raise ValueError("group must be given to patch for shard, got None")
    return ranks


def window_cache(held: tuple[int, int], seen: tuple[int | None, int], block: int | None) -> None:
    """Check that a bounded cache holds exactly the keys that the model sees."""
    if held != seen or block is not None:
        raise ValueError(
            f"past_key_values must hold what the patch shows, got WindowCache{held} with "
            f"window={seen[0]}, sink={seen[1]}, causal_block={block}"
        )


def padding_again(given: bool) -> None:
    """Check that a bounded cache whose rows began with padding gets a padding mask again."""
    if not given:
        raise ValueError(
            "attention_mask must be given again with a WindowCache whose rows began with padding, "
            "got None"
        )


def zeros_and_ones(mask: Any) -> None:
    """Check the numbers of a padding mask (batch, keys) where they can be read at no cost."""
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2 or mask.dtype == torch.bool:
        return
    if mask.is_cpu and _arrays.has_values(mask):
        checked_attention_mask(mask)


def left_padding(others: Collection[int]) -> None:
    """Check that no row has padding behind its real tokens."""
    if others:
        raise ValueError(
            "attention_mask must have padding on the left only with a WindowCache, got 0 behind 1 "
            f"in rows {others}"
        )


def onednn(linear: str, *, there: bool) -> None:
    """Check that torch has oneDNN's product where a patch asks for it by name."""
    if linear == "onednn" and not there:
        raise ValueError(
            "linear must be 'auto' or 'torch' where torch has no product of oneDNN for plain "
            f"weights, got {linear!r}"
        )


def all_heads(layer: str, every: int, computed: int, sloped: int) -> None:
    """Check that a layer computes all heads, and that the slopes are theirs."""
    if not every == computed == sloped:
        raise ValueError(
            f"{layer} must compute all {every} heads with their slopes, got {computed} heads and "
            f"slopes of {sloped}: the slopes of some heads are not those of a model with so few; "
            "ntk_alibi.tp_plan divides a model for tensor parallelism"
        )


def divided_heads(heads: int, size: int, *, eager: bool) -> None:
    """Check that a model's heads can be divided among ranks."""
    if heads % size:
        raise ValueError(f"tp_size must divide the model's {heads} heads, got {size}")
    if eager:
        raise ValueError(
            "attention must be 'fused' or 'sdpa' under tensor parallelism, and output_attentions "
            "False, got 'eager'"
        )


def no_tensor_parallelism() -> NoReturn:
    """Refuse a version of transformers without the tensor parallelism that our plans are for."""
    raise RuntimeError(
        "transformers must have transformers.distributed.tensor_parallel for tp_plan, got another "
        "version: 5.23 has it"
    )


def whole_layer(layer: str, weight: Any) -> None:
    """Refuse a layer that is divided among ranks."""
    if hasattr(weight, "device_mesh"):
        raise ValueError(
            "attention must be 'fused' or 'sdpa' under tensor parallelism, got 'traceable' with a "
            f"divided {layer}"
        )


def known_layers(scaling: Any, count: int) -> None:
    """Check that a scaling applies to layers that a model has."""
    layers = getattr(scaling, "layers", None) or ()
    if layers and max(layers) >= count:
        raise ValueError(
            f"layers must be below {count}, the number of the model's layers, got {scaling!r}"
        )


#: Message of torch where it cannot trace a patched model in one graph.
WAY_TO_TRACE = (
    "ntk_alibi: attention must be 'traceable' for torch.export and for torch.compile with "
    "fullgraph=True, since the other forms read numbers of the mask: use patch(model, scaling, "
    "attention='traceable')"
)


def traceable(attention: str, *, tracing: bool) -> None:
    """Check that torch does not trace a form of attention that reads the numbers of the mask."""
    if tracing and attention != "eager":
        raise ValueError(
            "attention must be 'traceable' where torch.export, make_fx or FakeTensorMode trace a "
            f"patched model, got {attention!r}, which reads numbers of the mask: use patch(model, "
            "scaling, attention='traceable')"
        )


def no_dropout_in_group(dropout: float) -> None:
    """Refuse dropout of attention weights, which attention over several ranks does not have."""
    if dropout:
        raise ValueError(
            f"attention dropout must be 0 in a model patched with group, got {dropout}"
        )


def mask_of_part(shape: tuple[int, ...] | None, part: tuple[int, int]) -> None:
    """Check that the attention_mask of a part of a text is of that part."""
    if shape is not None and shape != part:
        raise ValueError(
            "attention_mask must be of this rank's part of input_ids, (batch, tokens) = "
            f"{part}, in a model patched with group, got {shape}"
        )


def no_count_of_labels(count: Any) -> None:
    """Refuse a caller's number of labels, which the ranks of a text count themselves."""
    if count is not None:
        raise ValueError(
            "num_items_in_batch must be None in a model patched with group, got "
            f"{int(count)}: transformers' Trainer gives it, and multiplies the loss by the number "
            "of processes; give it a compute_loss of model(**inputs).loss, as docs/distributed.md "
            "has it"
        )


def packed_once(placements: Any) -> None:
    """Check that packed queries, keys and values are not divided in two ways at once.

    transformers' loading puts their parts in another order then.
    """
    divided = [x for x in placements or () if not x.is_replicate()]
    if len(divided) > 1:
        raise ValueError(
            "model must be divided by tensor parallelism or by FSDP, not both, where its queries, "
            f"keys and values are packed in one weight, got {tuple(placements)} for Wqkv"
        )


def parts_of_layout(lengths: list[int], expected: list[int], layout: str) -> None:
    """Check that the parts of all ranks are those that a layout gives them."""
    if lengths != expected:
        raise ValueError(
            f"input_ids must be the parts of shard(batch, group, layout={layout!r}), {expected} "
            f"tokens, in a model patched with this layout, got {lengths}"
        )


def cut_as_patched(cut: str | None, layout: str) -> None:
    """Check that a part was cut in the layout of the patch, as far as that is known."""
    if cut not in (None, layout):
        raise ValueError(
            f"input_ids must be cut in the layout of the patch, {layout!r}, got a part of shard("
            f"batch, group, layout={cut!r}): let the patch cut it, patch.shard(batch)"
        )


def some_tokens(tokens: int) -> None:
    """Check that a rank has a part of the text."""
    if tokens < 1:
        raise ValueError(
            "input_ids must have at least one token on each rank in a model patched with group, "
            f"got {tokens}"
        )


def inputs_of_rank(inputs: Any) -> None:
    """Check that a rank of a group gives inputs."""
    if inputs is None:
        raise ValueError(
            "input_ids or inputs_embeds must be given in a model patched with group, got None"
        )


def labels_of_part(shape: tuple[int, ...], part: tuple[int, ...]) -> None:
    """Check that labels are those of a rank's part."""
    if shape != part:
        raise ValueError(
            f"labels must be those of this rank's part of input_ids, {part}, in a model patched "
            f"with group, got {shape}: ntk_alibi.torch.shard shifts and cuts them"
        )


def cache_of_ranks(same: bool) -> None:
    """Check that a spread cache has the ranks of the patch."""
    if not same:
        raise ValueError(
            "past_key_values must be a ShardedCache of the group that the model is patched with, "
            "got one of other ranks"
        )


def cache_of_group(cache: Any, layout: str, *, sharded: bool) -> None:
    """Check that the cache of a model patched with group is spread over the group, too."""
    if cache is not None and layout != "contiguous":
        raise ValueError(
            f"layout must be 'contiguous' with past_key_values, which cuts the prompt into runs, "
            f"got {layout!r}"
        )
    if cache is not None and not sharded:
        raise ValueError(
            "past_key_values must be a ShardedCache, or None, in a model patched with group, got "
            f"{type(cache).__name__}: generate(..., past_key_values=ntk_alibi.ShardedCache(group))"
        )


def patched_with_group(sharded: bool) -> None:
    """Refuse a spread cache in a model that is patched without a group."""
    if sharded:
        raise ValueError(
            "past_key_values must not be a ShardedCache in a model that is patched without group: "
            "patch(model, scaling, group=group)"
        )


def no_weights_in_group(wanted: bool) -> None:
    """Refuse attention weights, of which a rank has only some columns."""
    if wanted:
        raise ValueError("output_attentions must be False in a model patched with group, got True")


def traceable_choices(settings: Any, per: str | None, *, unlimited: bool) -> None:
    """Check that the choices of a patch leave nothing to read from the numbers of a mask."""
    form = "with attention='traceable'"
    if per is not None:
        raise ValueError(
            f"scaling must be static {form}, got {settings.scaling!r}, whose slopes depend on the "
            "numbers of a mask: use a scaling without lengths such as NTK(factor), or "
            "attention='fused'"
        )
    if not unlimited:
        raise ValueError(
            f"window, sink and causal_block must not be given {form}, which takes the masks that "
            f"transformers makes, got {settings!r}: use attention='fused'"
        )
    if settings.linear == "onednn":
        raise ValueError(
            f"linear must be 'auto' or 'torch' {form}, got {settings.linear!r}, whose products "
            "torch does not trace: use attention='fused'"
        )


def of_families(model: Any, config: Any, families: tuple[type, ...]) -> None:
    """Check that a model that is made with our name may hold attention of a known family."""
    if not isinstance(config, families) and not getattr(config, "sub_configs", None):
        raise ValueError(
            "attn_implementation='ntk_alibi' must be given to a BLOOM, MPT or Falcon, got "
            f"{type(model).__name__}, whose attention it is not for"
        )


def own_masks(configured: bool) -> None:
    """Check that a model to trace makes masks of queries and keys."""
    if configured:
        raise ValueError(
            "attention must not be 'traceable' for a model made with "
            "attn_implementation='ntk_alibi', which makes no masks of queries and keys: make it "
            "with attn_implementation='eager'"
        )


def unbounded_cache(bounded: bool) -> None:
    """Check that a model to trace gets no cache that forgets tokens."""
    if bounded:
        raise ValueError(
            "past_key_values must not be a WindowCache with attention='traceable', which has no "
            "window: use attention='fused', or another cache"
        )


def mask_of_pairs(mask: Any, layer: str) -> Any:
    """Return a layer's mask of queries and keys, which transformers must have made."""
    if getattr(mask, "ndim", None) != 4:
        raise RuntimeError(
            f"transformers made no mask of queries and keys for {layer}, from which a patch with "
            f"attention='traceable' reads distances, got {type(mask).__name__}: use "
            "attention='eager'"
        )
    return mask


def described(scaling: Any) -> Any:
    """Return a scaling that a configuration can describe."""
    if not hasattr(scaling, "to_config"):
        raise ValueError(
            "scaling must have to_config to be saved with a model, as NTK(factor=4.0) has, got "
            f"{scaling!r}: call na.unpatch(model) before save_pretrained, and na.patch after "
            "loading"
        )
    return scaling


def plain_setting(name: str, value: Any) -> Any:
    """Return a setting of a configuration as JSON can hold it: objects by their to_config."""
    if value is None or isinstance(value, str | bool | int | float | list | Mapping):
        return value
    if isinstance(value, type) or not callable(getattr(value, "to_config", None)):
        raise TypeError(
            f"{name} must be what JSON can hold, or have to_config as NTK(factor=4.0) has, got "
            f"{value!r}: na.patch takes other objects"
        )
    return value.to_config()


def configured_scaling(value: Any) -> None:
    """Check the kind of a configuration's scaling."""
    if not isinstance(value, str | Mapping | type(None)):
        raise TypeError(
            "alibi_scaling must be None, a method's name or a dict such as "
            f"{{'alibi_type': 'ntk', 'factor': 4.0}}, got {value!r}"
        )


@contextlib.contextmanager
def of_configuration(names: Collection[str]) -> Iterator[None]:
    """Name the configuration's setting, alibi_window for window, in an error about it."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if str(error).partition(" ")[0] not in names:
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"alibi_{error}") from error


def config_of(config: Any, model: Any) -> None:
    """Check that a configuration is one of a model that is patched."""
    if not isinstance(config, model.config_class):
        raise ValueError(
            f"config must hold the configuration of its {model.__name__} to save a patch, got "
            f"{type(config).__name__}: call na.unpatch(model) before save_pretrained, and na.patch "
            "after loading"
        )

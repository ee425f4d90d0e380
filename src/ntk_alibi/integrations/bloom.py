"""BLOOM: how its attention gets other slopes.

transformers builds BLOOM's bias in two places: `BloomModel.build_alibi_tensor` when an attention
mask is given, and inline when none is (since 5.21; generate() drops a mask of ones itself since
5.19). Replacing the function therefore misses every unpadded prompt. The patch makes the second
case the first:

1. a hook before BloomModel.forward supplies the missing mask, and widens it to four dimensions
   without memory (stride 0), which keeps transformers from building its own queries x keys mask;
2. the model's build_alibi_tensor returns a `BloomBias` instead of a tensor. It travels to the
   layers as their `alibi` argument, through gradient checkpointing too, and holds all that a layer
   needs: nothing is kept between calls;
3. each layer's attention forward consumes it. One that is handed a tensor raises, so that a patch
   which transformers bypasses cannot pass unnoticed.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import nn
from torch.nn import functional as F
from transformers.models.bloom.modeling_bloom import BloomAttention, BloomModel

from ntk_alibi.bias import ALiBi, build_alibi_tensor
from ntk_alibi.integrations.patching import (
    Family,
    Settings,
    check_version,
    current,
    override,
    restore,
    transformers_version,
)
from ntk_alibi.slopes import prefix_lengths, scaled_slopes, scaling_per
from ntk_alibi.torch.sdpa import causal_linear_attention

_HOOK = "_ntk_alibi_mask_hook"

Index: TypeAlias = slice | torch.Tensor


@dataclass(frozen=True)
class Rows:
    """Batch rows whose real tokens stand in the same columns: a problem without padding.

    BLOOM counts positions over real tokens, so leaving out the padded columns makes positions
    contiguous.
    """

    batch: slice
    queries: Index
    keys: Index
    slopes: torch.Tensor  # float32 (1 or batch, heads, 1 or queries)


class BloomBias:
    """What one forward pass knows about its keys; takes the place of the alibi tensor."""

    def __init__(
        self, model: BloomModel, mask: torch.Tensor, dtype: torch.dtype, *, fused: bool
    ) -> None:
        self.fused = fused
        self._scaling = current(model).scaling
        self._model = model
        self._mask = mask
        self._dtype = dtype
        self._rows: dict[tuple[int, int], list[Rows]] = {}
        self._dense: torch.Tensor | None = None

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        past_length: int,
        scale: float,
        dropout: float,
    ) -> torch.Tensor:
        """Attention output (batch, heads, queries, head_dim); 0 for padded queries."""
        query_length = query.shape[2]
        rows = self.rows(past_length, query_length)

        def part(r: Rows) -> torch.Tensor:
            return causal_linear_attention(
                query[r.batch, :, r.queries],
                key[r.batch, :, r.keys],
                value[r.batch, :, r.keys],
                r.slopes.to(query.device),
                scale=scale,
                dropout=dropout,
            )

        if len(rows) == 1 and rows[0].queries == slice(0, query_length):
            return part(rows[0])
        output = torch.zeros_like(query, memory_format=torch.contiguous_format)
        for r in rows:
            output[r.batch, :, r.queries] = part(r)
        return output

    def tensor(self, past_length: int, query_length: int) -> torch.Tensor:
        """The bias as transformers' own attention takes it, (batch * heads, 1 or queries, keys)."""
        if self._dense is None:
            self._dense = self._build(past_length, query_length)
        return self._dense

    def _build(self, past_length: int, query_length: int) -> torch.Tensor:
        heads, scaling = self._model.num_heads, self._scaling
        if scaling is None:
            return BloomModel.build_alibi_tensor(self._model, self._mask, heads, self._dtype)
        if scaling_per(scaling) != "query":
            return cast(torch.Tensor, build_alibi_tensor(self._mask, heads, self._dtype, scaling))
        batch, key_length = self._mask.shape
        dense = torch.zeros(
            (batch, heads, query_length, key_length), dtype=self._dtype, device=self._mask.device
        )
        for r in self.rows(past_length, query_length):
            bias = ALiBi(heads, slopes=r.slopes, sides="symmetric")
            for b in range(*r.batch.indices(batch)):
                queries = torch.arange(query_length, device=dense.device)[r.queries]
                keys = torch.arange(key_length, device=dense.device)[r.keys]
                part = bias.tensor(len(queries), len(keys), self._dtype)
                dense[b, :, queries[:, None], keys] = part[0].to(dense.device)
        return dense.flatten(0, 1)

    def baddbmm(self, *_: Any, **__: Any) -> None:
        """What transformers' own attention would call on a tensor."""
        raise RuntimeError(
            "the patch must stay until the backward pass of a gradient-checkpointed forward is "
            "done, which runs that forward again; it was undone before"
        )

    def rows(self, past_length: int, query_length: int) -> list[Rows]:
        """The batch as problems without padding; queries are the columns from past_length on."""
        key = (past_length, query_length)
        if key not in self._rows:
            self._rows[key] = self._split(past_length, query_length)
        return self._rows[key]

    def _split(self, past_length: int, query_length: int) -> list[Rows]:
        real = self._mask[:, : past_length + query_length].bool().cpu()
        if bool(real.all()):
            everything = slice(0, past_length + query_length)
            slopes = self._slopes(real, query_length)
            return [Rows(slice(0, len(real)), slice(0, query_length), everything, slopes)]
        rows = []
        for b, row in enumerate(real):
            queries = _columns(row[past_length:])
            count = int(row[past_length:].sum())
            if count:
                slopes = self._slopes(row[None], count)
                rows.append(Rows(slice(b, b + 1), queries, _columns(row), slopes))
        return rows

    def _slopes(self, real: torch.Tensor, query_length: int) -> torch.Tensor:
        scaling = self._scaling
        lengths = real.sum(dim=1).numpy()
        if scaling_per(scaling) == "query":
            lengths = prefix_lengths(lengths, query_length)
        slopes = scaled_slopes(self._model.num_heads, scaling, lengths)
        tensor = torch.from_numpy(slopes)
        if tensor.ndim == 1:
            return tensor[None, :, None]
        return tensor[:, :, None] if tensor.ndim == 2 else tensor


def _columns(real: torch.Tensor) -> Index:
    """The columns of real tokens, as a slice where they are contiguous, which copies nothing."""
    columns = real.nonzero().flatten()
    if len(columns) == 0:
        return slice(0, 0)
    first, last = int(columns[0]), int(columns[-1])
    return slice(first, last + 1) if last - first + 1 == len(columns) else columns


def _supply_mask(
    model: BloomModel, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[()], dict[str, Any]]:
    """Before BloomModel.forward: a mask (batch, keys), or with stride 0 (batch, 1, queries, keys).

    The second form is for the fused attention, which wants no mask from transformers.
    """
    names = list(inspect.signature(BloomModel.forward).parameters)[1:]
    kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
    inputs = kwargs.get("input_ids")
    inputs = kwargs.get("inputs_embeds") if inputs is None else inputs
    if inputs is None:
        return (), kwargs  # BloomModel says what is wrong
    batch, query_length = inputs.shape[:2]
    cache = kwargs.get("past_key_values")
    seen = query_length + (0 if cache is None else int(cache.get_seq_length()))
    capacity = seen if cache is None else cache.get_mask_sizes(query_length, 0)[0]
    mask = kwargs.get("attention_mask")
    if mask is None:
        mask = torch.ones((batch, seen), dtype=torch.long, device=inputs.device)
    elif mask.ndim != 2 or mask.shape[0] != batch or mask.shape[1] < seen:
        raise ValueError(
            f"attention_mask must have shape (batch, keys) = ({batch}, {seen}) for a patched "
            "BLOOM, "
            f"got {tuple(mask.shape)}"
        )
    mask = F.pad((mask != 0).long().to(inputs.device), (0, max(0, capacity - mask.shape[1])))
    attentions = kwargs.get("output_attentions")
    attentions = model.config.output_attentions if attentions is None else attentions
    if current(model).attention == "sdpa" and not attentions:
        mask = mask[:, None, None, :].expand(-1, 1, max(1, query_length), -1)
    kwargs["attention_mask"] = mask
    return (), kwargs


def _build_bias(
    model: BloomModel, attention_mask: torch.Tensor, num_heads: int, dtype: torch.dtype
) -> BloomBias:
    """In place of BloomModel.build_alibi_tensor."""
    fused = attention_mask.ndim == 4  # the hook's choice for this call
    return BloomBias(
        model, attention_mask[:, 0, 0, :] if fused else attention_mask, dtype, fused=fused
    )


def _attention_forward(
    attention: BloomAttention,
    hidden_states: torch.Tensor,
    residual: torch.Tensor,
    alibi: BloomBias,
    attention_mask: torch.Tensor,
    layer_past: Any = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """In place of BloomAttention.forward."""
    if not isinstance(alibi, BloomBias):
        raise RuntimeError(
            "transformers built BLOOM's bias without asking the patched model: "
            f"the patch would have no effect with transformers {transformers_version()}"
        )
    past_length = 0 if layer_past is None else int(layer_past.get_seq_length(attention.layer_idx))
    if alibi.fused:
        return _fused(attention, hidden_states, alibi, layer_past, past_length, residual), None
    tensor = alibi.tensor(past_length, hidden_states.shape[1])
    outputs: tuple[torch.Tensor, torch.Tensor] = type(attention).forward(
        attention, hidden_states, residual, tensor, attention_mask, layer_past, **kwargs
    )
    return outputs


def _fused(
    attention: BloomAttention,
    hidden_states: torch.Tensor,
    bias: BloomBias,
    layer_past: Any,
    past_length: int,
    residual: torch.Tensor,
) -> torch.Tensor:
    query, key, value = attention._reshape(attention.query_key_value(hidden_states))
    if layer_past is not None:
        key, value = layer_past.update(key, value, attention.layer_idx)
    context = bias.attend(
        query,
        key,
        value,
        past_length=past_length,
        scale=attention.inv_norm_factor,
        dropout=attention.attention_dropout.p if attention.training else 0.0,
    )
    output = attention.dense(context.transpose(1, 2).flatten(2))
    return F.dropout(output, attention.hidden_dropout, attention.training) + residual


def _attentions(model: nn.Module) -> list[BloomAttention]:
    return [part for part in model.modules() if isinstance(part, BloomAttention)]


def _find(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if isinstance(part, BloomModel)]


def _check(model: nn.Module, settings: Settings) -> None:
    check_version()
    expected = {
        BloomAttention.forward: {
            "hidden_states",
            "residual",
            "alibi",
            "attention_mask",
            "layer_past",
        },
        BloomModel.build_alibi_tensor: {"attention_mask", "num_heads", "dtype"},
        BloomModel.forward: {"input_ids", "inputs_embeds", "past_key_values", "attention_mask"},
    }
    for function, names in expected.items():
        if missing := names - set(inspect.signature(function).parameters):
            raise RuntimeError(
                f"transformers {transformers_version()} is not what the BLOOM patch expects: "
                f"{function.__qualname__} has no {', '.join(sorted(missing))}"
            )
    for attention in _attentions(model):
        if (
            settings.attention == "sdpa"
            and attention.pretraining_tp > 1
            and attention.slow_but_exact
        ):
            raise ValueError(
                "attention must be 'eager' for a BLOOM with slow_but_exact and pretraining_tp > 1, "
                f"got {settings.attention!r}"
            )


def _install(model: nn.Module) -> None:
    handle = model.register_forward_pre_hook(_supply_mask, with_kwargs=True)
    setattr(model, _HOOK, handle)
    override(model, "build_alibi_tensor", _build_bias)
    for attention in _attentions(model):
        override(attention, "forward", _attention_forward)


def _uninstall(model: nn.Module) -> None:
    getattr(model, _HOOK).remove()
    delattr(model, _HOOK)
    restore(model, "build_alibi_tensor")
    for attention in _attentions(model):
        restore(attention, "forward")


FAMILY = Family("BLOOM", _find, _check, _install, _uninstall)

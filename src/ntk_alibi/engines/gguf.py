"""GGUF, the file format of llama.cpp and ggml, for BLOOM and MPT.

A file names an architecture, which is a graph in llama.cpp's code, and holds its parameters. Both
families are written as "mpt", whose graph reads `max_alibi_bias` from the file; in the graph
"bloom" it is always 8. A BLOOM is changed to fit:

- BLOOM norms its embeddings. The norm depends on one token only, so it is applied to the table
  here; logits need the table without norm, which is another tensor of the file.
- BLOOM stores query, key and value of each head together, MPT all queries, then keys, then values.

llama.cpp computes the same GELU as BLOOM.

Sources: the code of ggml and llama.cpp (docs/run-elsewhere.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from ntk_alibi import _checks
from ntk_alibi._core import __version__
from ntk_alibi.engines.export import Format, Request, Written
from ntk_alibi.engines.gguf_vocabulary import Vocabulary, read_vocabulary
from ntk_alibi.methods import train_length_or_default
from ntk_alibi.scaling import MaxBias, is_dynamic

if TYPE_CHECKING:
    import gguf

#: For each dtype of `export`: the names of the type of a matrix, and of the type of the file.
_TYPES = {
    "float32": ("F32", "ALL_F32"),
    "float16": ("F16", "MOSTLY_F16"),
    "bfloat16": ("BF16", "MOSTLY_BF16"),
    "q8_0": ("Q8_0", "MOSTLY_Q8_0"),
}


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file.

    Attributes:
        name: its name in the file.
        weights: the model's parameter, which has the same shape.
        change: computes what the file holds from the parameter; None for the parameter itself.
    """

    name: str
    weights: torch.Tensor
    change: Callable[[torch.Tensor], torch.Tensor] | None = None

    def values(self) -> NDArray[np.float32]:
        """Return the values to write."""
        weights = self.weights.detach().cpu()
        with torch.no_grad():
            changed = weights if self.change is None else self.change(weights)
        array: NDArray[np.float32] = changed.float().contiguous().numpy()
        return array

    def file_type(self, dtype: str) -> gguf.GGMLQuantizationType:
        """Return the type of the tensor in a file; vectors are small, and stay in float32."""
        import gguf

        return gguf.GGMLQuantizationType[_TYPES["float32" if self.weights.ndim == 1 else dtype][0]]


#: Tensors of a file, and their name for `progress`.
Group: TypeAlias = tuple[str, list[Tensor]]


def check_contents(request: Request) -> tuple[list[Group], float, Vocabulary]:
    """Return a file's groups of tensors, its `max_alibi_bias` and its vocabulary.

    Raises:
        ValueError: the file cannot hold the model or its settings.
    """
    if request.family.name not in _FAMILIES:
        raise ValueError(
            f"model must be of {' or '.join(_FAMILIES)} for format 'gguf', got a "
            f"{request.family.name}"
        )
    family = _FAMILIES[request.family.name]
    head = _find_head(request)
    _check_layers(request.model)
    max_bias = _find_max_bias(request)
    family.check(request.target)
    if not request.cache:
        raise ValueError("cache must be True for format 'gguf', whose engines have one, got False")
    vocabulary = read_vocabulary(request.tokenizer, len(head.weight))
    groups = list(family.groups(request.target, head))
    for tensor in (tensor for _, tensors in groups for tensor in tensors):
        if request.dtype == "q8_0" and tensor.weights.ndim > 1:
            _checks.multiple(f"the width of {tensor.name}", tensor.weights.shape[-1], "q8_0", 32)
    return groups, max_bias, vocabulary


def write(request: Request, path: Path) -> Written:
    """Write a BLOOM or an MPT as a GGUF file."""
    import gguf

    groups, max_bias, vocabulary = check_contents(request)
    family, config = _FAMILIES[request.family.name], request.target.config
    context = _context_length(request)
    writer = gguf.GGUFWriter(path, "mpt")
    try:
        writer.add_name(type(request.model).__name__)
        writer.add_description(f"{request.method}, written by ntk_alibi {__version__}")
        writer.add_context_length(context)
        writer.add_embedding_length(config.hidden_size)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_feed_forward_length(4 * config.hidden_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        writer.add_max_alibi_bias(max_bias)
        if clip := family.clip(request.target):
            writer.add_clamp_kqv(clip)
        writer.add_file_type(gguf.LlamaFileType[_TYPES[request.dtype][1]])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        vocabulary.add_to(writer)
        difference = _write_tensors(writer, groups, request)
    finally:
        writer.close()
    return Written(
        inputs=(f"text or tokens, of {len(vocabulary.tokens)}", f"context: {context}"),
        outputs=("logits of the next token",),
        checked=(
            f"max_alibi_bias {max_bias:g} has the slopes of all layers; its weights differ from "
            f"the model's by {difference:.1e} at most"
        ),
    )


def _find_head(request: Request) -> Any:
    """Return the layer of logits above the decoder."""
    for part in request.model.modules():
        if getattr(part, "transformer", None) is request.target and hasattr(part, "lm_head"):
            return part.lm_head
    raise ValueError(
        "model must have a language model head for format 'gguf', got "
        f"{type(request.model).__name__}"
    )


def _check_layers(model: nn.Module) -> None:
    """Refuse adapters and quantized layers, which do not compute with their `weight` alone."""
    for name, part in model.named_modules():
        for size, plain in (("in_features", nn.Linear), ("num_embeddings", nn.Embedding)):
            if hasattr(part, size) and type(part) is not plain:
                raise ValueError(
                    f"model must have plain layers for format 'gguf', got {type(part).__name__} at "
                    f"{name}: merge adapters first, and load weights unquantized"
                )


def _find_max_bias(request: Request) -> float:
    """Return the `max_alibi_bias` from which llama.cpp computes the slopes of these settings."""
    settings, rule = request.settings, request.family.rule(request.target)
    if settings.bias is not None:
        raise ValueError(
            f"method must be no bias for format 'gguf', got {_checks.briefly(settings.bias)}"
        )
    _checks.check_equal("log_n", settings.log_n, None, "for format 'gguf'")
    if any(settings.limits.values()):
        raise ValueError(
            f"window, sink and causal_block must not be given for format 'gguf', got {settings!r}"
        )
    scaling: Any = settings.scaling
    if (max_bias := rule.find_max_bias(scaling)) is not None:
        return max_bias
    factor = 1.0 if is_dynamic(scaling) else rule.as_factor(scaling)
    nearest = MaxBias(float(f"{factor:.6g}") if factor > 1.0 else 4.0)
    raise ValueError(
        "method must have the slopes of one max_alibi_bias for format 'gguf', got "
        f"{settings.scaling!r}: the nearest that has them is {nearest!r}"
    )


def _context_length(request: Request) -> int:
    """Return the stretched training length, which llama.cpp's server takes as its limit."""
    rule, scaling = request.family.rule(request.target), request.settings.scaling
    factor = 1.0 if scaling is None else max(rule.as_factor(scaling), 1.0)
    return round(train_length_or_default(request.target.config) * factor)


def _write_tensors(writer: gguf.GGUFWriter, groups: list[Group], request: Request) -> float:
    """Write the tensors one by one, so that memory holds one of them besides the model.

    Returns:
        The greatest difference between the model's weights and the file's.

    Raises:
        ValueError: a weight is NaN or infinite, or would be in the file's dtype.
    """
    import gguf

    for _, tensors in groups:
        for tensor in tensors:
            kind = tensor.file_type(request.dtype)
            block, size = gguf.GGML_QUANT_SIZES[kind]
            bytes_ = tensor.weights.numel() // block * size
            shape = tuple(tensor.weights.shape)
            writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), bytes_, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    greatest = 0.0
    for group, tensors in groups:
        request.report(f"{group}: {len(tensors)} tensors")
        for tensor in tensors:
            values, kind = tensor.values(), tensor.file_type(request.dtype)
            if not np.isfinite(values).all():
                raise ValueError(f"model must have finite weights, got others in {tensor.name}")
            with np.errstate(over="ignore"):
                stored = gguf.quantize(values, kind)
            difference = float(np.abs(gguf.dequantize(stored, kind) - values).max())
            if not np.isfinite(difference):
                raise ValueError(
                    f"dtype must hold the weights of {tensor.name}, up to "
                    f"{np.abs(values).max():g}, got {request.dtype!r}"
                )
            writer.write_tensor_data(stored)
            greatest = max(greatest, difference)
    return greatest


def _bloom_groups(decoder: Any, head: Any) -> Iterator[Group]:
    """Yield the tensors of a BLOOM."""
    norm = decoder.word_embeddings_layernorm

    def after_norm(table: torch.Tensor) -> torch.Tensor:
        weight, bias = norm.weight.double().cpu(), norm.bias.double().cpu()
        parts = (  # of rows, since the whole table in float64 may not fit into memory
            F.layer_norm(part.double(), norm.normalized_shape, weight, bias, norm.eps).float()
            for part in table.split(8192)
        )
        return torch.cat(list(parts))

    def by_kind(packed: torch.Tensor) -> torch.Tensor:
        heads: torch.Tensor = packed.unflatten(0, (decoder.num_heads, 3, -1))
        return heads.transpose(0, 1).flatten(0, 2)

    embeddings = [
        Tensor("token_embd.weight", decoder.word_embeddings.weight, after_norm),
        Tensor("output.weight", head.weight),
        *_layer_tensors("output_norm", decoder.ln_f),
    ]
    yield "embeddings", embeddings
    for i, block in enumerate(decoder.h):
        layer = [
            *_layer_tensors(f"blk.{i}.attn_norm", block.input_layernorm),
            *_layer_tensors(f"blk.{i}.attn_qkv", block.self_attention.query_key_value, by_kind),
            *_layer_tensors(f"blk.{i}.attn_output", block.self_attention.dense),
            *_layer_tensors(f"blk.{i}.ffn_norm", block.post_attention_layernorm),
            *_layer_tensors(f"blk.{i}.ffn_up", block.mlp.dense_h_to_4h),
            *_layer_tensors(f"blk.{i}.ffn_down", block.mlp.dense_4h_to_h),
        ]
        yield f"layer {i + 1} of {len(decoder.h)}", layer


def _check_bloom(decoder: Any) -> None:
    """Refuse what the graph of a file cannot compute."""
    if decoder.config.apply_residual_connection_post_layernorm:
        raise ValueError(
            "apply_residual_connection_post_layernorm must be False for format 'gguf', got True"
        )


def _mpt_groups(decoder: Any, head: Any) -> Iterator[Group]:
    """Yield the tensors of an MPT; without "output", engines take the embeddings for it."""
    tied = head.weight is decoder.wte.weight
    embeddings = [
        Tensor("token_embd.weight", decoder.wte.weight),
        *([] if tied else _layer_tensors("output", head)),
        *_layer_tensors("output_norm", decoder.norm_f),
    ]
    yield "embeddings", embeddings
    for i, block in enumerate(decoder.blocks):
        layer = [
            *_layer_tensors(f"blk.{i}.attn_norm", block.norm_1),
            *_layer_tensors(f"blk.{i}.attn_qkv", block.attn.Wqkv),
            *_layer_tensors(f"blk.{i}.attn_output", block.attn.out_proj),
            *_layer_tensors(f"blk.{i}.ffn_norm", block.norm_2),
            *_layer_tensors(f"blk.{i}.ffn_up", block.ffn.up_proj),
            *_layer_tensors(f"blk.{i}.ffn_down", block.ffn.down_proj),
        ]
        yield f"layer {i + 1} of {len(decoder.blocks)}", layer


def _check_mpt(decoder: Any) -> None:
    """Refuse what the graph of a file cannot compute."""
    scale = decoder.config.attn_config.softmax_scale
    usual = (decoder.config.hidden_size / decoder.num_heads) ** -0.5
    if scale is not None and not np.isclose(scale, usual, rtol=1e-6):
        raise ValueError(
            f"softmax_scale must be None or {usual:g} for format 'gguf', got {scale:g}"
        )


def _layer_tensors(
    name: str, layer: nn.Module, change: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> list[Tensor]:
    """Return the weight of a layer, and its bias if it has one."""
    both = [(part, getattr(layer, part, None)) for part in ("weight", "bias")]
    return [Tensor(f"{name}.{part}", x, change) for part, x in both if x is not None]


@dataclass(frozen=True)
class _Family:
    """How a family's models are written.

    Attributes:
        groups: yields the tensors of a decoder and its head.
        check: refuses a decoder that the graph of a file does not compute.
        clip: returns the limit to which queries, keys and values are clipped, or None.
    """

    groups: Callable[[Any, Any], Iterator[Group]]
    check: Callable[[Any], None]
    clip: Callable[[Any], float | None]


_FAMILIES = {
    "BLOOM": _Family(_bloom_groups, _check_bloom, lambda decoder: None),
    "MPT": _Family(_mpt_groups, _check_mpt, lambda decoder: decoder.config.attn_config.clip_qkv),
}

FORMAT = Format(tuple(_TYPES), False, check_contents, write, packages=("gguf",))

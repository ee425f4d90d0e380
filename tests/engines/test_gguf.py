"""GGUF files by gguf's own reader: tensors, weights, vocabulary, and what is refused."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers

import ntk_alibi as na
from commands import full_disk
from small_models import like_bloom, like_mpt, make_model, trained_tokenizer

gguf = pytest.importorskip("gguf", reason="pip install 'ntk-alibi[gguf]'")

pytestmark = pytest.mark.slow  # needs gguf


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return like_mpt()


@pytest.fixture(scope="module")
def bloom(tokenizer: Any) -> Any:
    model = make_model("bloom", vocab_size=len(tokenizer) + 3, layers=2, seq_length=64)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(1)
            )
    return model


def mpt(tokenizer: Any, **attention: Any) -> Any:
    return make_model(
        "mpt",
        heads=4,
        layers=1,
        vocab_size=len(tokenizer),
        tie_word_embeddings=True,
        attn_config=attention,
    )


class Read:
    """The contents of a file."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.fields = {name: field.contents() for name, field in reader.fields.items()}
        self.types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
        self.tensors = {
            tensor.name: torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
            for tensor in reader.tensors
        }


def test_a_bloom_is_written_for_the_graph_of_mpt(
    bloom: Any, tokenizer: Any, tmp_path: Path
) -> None:
    na.export(bloom, tmp_path / "a.gguf", na.MaxBias(4.0), tokenizer=tokenizer)
    read, decoder = Read(tmp_path / "a.gguf"), bloom.transformer
    fields = {name: read.fields[name] for name in read.fields if name.startswith("mpt.")}
    assert fields == {
        "mpt.context_length": 256,
        "mpt.embedding_length": 128,
        "mpt.block_count": 2,
        "mpt.feed_forward_length": 512,
        "mpt.attention.head_count": 8,
        "mpt.attention.layer_norm_epsilon": pytest.approx(1e-5),
        "mpt.attention.max_alibi_bias": 10.0,
    }
    with torch.no_grad():
        table = decoder.word_embeddings_layernorm(decoder.word_embeddings.weight)
    torch.testing.assert_close(read.tensors["token_embd.weight"], table, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(read.tensors["output.weight"], bloom.lm_head.weight.detach())
    for i, block in enumerate(decoder.h):
        packed, x = block.self_attention.query_key_value, torch.randn(5, 128)
        expected = packed(x).detach().unflatten(1, (8, 3, 16)).permute(0, 2, 1, 3).flatten(1)
        weight, bias = (read.tensors[f"blk.{i}.attn_qkv.{part}"] for part in ("weight", "bias"))
        torch.testing.assert_close(x @ weight.T + bias, expected)
        for name, layer in {
            "attn_norm": block.input_layernorm,
            "attn_output": block.self_attention.dense,
            "ffn_norm": block.post_attention_layernorm,
            "ffn_up": block.mlp.dense_h_to_4h,
            "ffn_down": block.mlp.dense_4h_to_h,
        }.items():
            for part in ("weight", "bias"):
                stored = read.tensors[f"blk.{i}.{name}.{part}"]
                torch.testing.assert_close(stored, getattr(layer, part).detach(), atol=0, rtol=0)
    assert len(read.tensors) == 4 + 2 * 12


@pytest.mark.parametrize(
    ("scaling", "number", "context"), [(None, 16.0, 48), (na.MaxBias(4.0), 18.0, 192)], ids=str
)
def test_an_mpt_keeps_its_max_bias(
    scaling: Any, number: float, context: int, tokenizer: Any, tmp_path: Path
) -> None:
    """MPT-7B-StoryWriter has 16; with 8, MaxBias(4.0) would silently give 10 in place of 18."""
    model = mpt(tokenizer, alibi_bias_max=16, clip_qkv=3.0)
    na.export(model, tmp_path / "a.gguf", scaling, tokenizer=tokenizer)
    read = Read(tmp_path / "a.gguf")
    assert read.fields["mpt.attention.max_alibi_bias"] == number
    assert read.fields["mpt.context_length"] == context
    assert read.fields["mpt.attention.clamp_kqv"] == 3.0
    assert "output.weight" not in read.tensors  # engines take the embeddings
    packed = model.transformer.blocks[0].attn.Wqkv.weight.detach()
    torch.testing.assert_close(read.tensors["blk.0.attn_qkv.weight"], packed, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("dtype", "name", "step"),
    [("float16", "F16", 2**-11), ("bfloat16", "BF16", 2**-8), ("q8_0", "Q8_0", 1 / 127)],
)
def test_matrices_have_the_dtype_and_vectors_stay(
    dtype: str, name: str, step: float, bloom: Any, tokenizer: Any, tmp_path: Path
) -> None:
    na.export(bloom, tmp_path / "a.gguf", dtype=dtype, tokenizer=tokenizer)
    na.export(bloom, tmp_path / "b.gguf", tokenizer=tokenizer)
    read, exact = Read(tmp_path / "a.gguf"), Read(tmp_path / "b.gguf")
    for tensor, values in exact.tensors.items():
        assert read.types[tensor] == ("F32" if values.ndim == 1 else name)
        largest = values.abs().unflatten(-1, (-1, 32)).amax(-1, keepdim=True)
        error = (read.tensors[tensor] - values).abs().unflatten(-1, (-1, 32))
        assert (error <= step * largest).all()  # q8_0 has steps of each 32 numbers' largest / 127


def test_a_half_model_is_written_as_it_is(bloom: Any, tokenizer: Any, tmp_path: Path) -> None:
    half = copy.deepcopy(bloom).bfloat16()
    exported = na.export(half, tmp_path / "a.gguf", tokenizer=tokenizer)
    assert exported.dtype == "bfloat16"
    stored = Read(tmp_path / "a.gguf").tensors["output.weight"]
    torch.testing.assert_close(stored, half.lm_head.weight.detach().float(), atol=0, rtol=0)


def test_the_vocabulary_is_that_of_the_tokenizer(bloom: Any, tmp_path: Path) -> None:
    for tokenizer, pre, added in ((like_mpt(), "gpt-2", 23), (like_bloom(), "bloom", 0)):
        na.export(bloom, tmp_path / "a.gguf", tokenizer=tokenizer, overwrite=True)
        fields = {
            name.removeprefix("tokenizer.ggml."): value
            for name, value in Read(tmp_path / "a.gguf").fields.items()
        }
        tokens, rows = fields["tokens"], bloom.config.vocab_size
        assert tokens[: len(tokenizer)] == tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        padding = [f"[PAD{i}]" for i in range(len(tokenizer), rows)]
        assert tokens[len(tokenizer) :] == padding
        kinds = fields["token_type"]
        assert kinds.count(gguf.TokenType.UNUSED) == len(padding)
        assert kinds.count(gguf.TokenType.CONTROL) == len(tokenizer.all_special_ids)
        assert kinds.count(gguf.TokenType.USER_DEFINED) == added
        assert (fields["model"], fields["pre"]) == ("gpt2", pre)
        assert fields["eos_token_id"] == tokenizer.eos_token_id
        assert fields["bos_token_id"] == tokenizer.bos_token_id
        assert not fields["add_bos_token"]
        assert not fields["add_eos_token"]
        merged = [merge.replace(" ", "") for merge in fields["merges"]]
        assert set(merged) <= set(tokens)


def test_a_tokenizer_that_adds_bos_does_so_in_the_file(bloom: Any, tmp_path: Path) -> None:
    tokenizer = like_bloom()
    tokenizer.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)]
    )
    na.export(bloom, tmp_path / "a.gguf", tokenizer=tokenizer)
    fields = Read(tmp_path / "a.gguf").fields
    assert fields["tokenizer.ggml.add_bos_token"]
    assert not fields["tokenizer.ggml.add_eos_token"]


@pytest.mark.parametrize(
    ("scaling", "nearest"),
    [
        ("ntk:4", "MaxBias(factor=4.0)"),
        ("interpolation:2", "MaxBias(factor=2.0)"),
        ("flat:8", "MaxBias(factor=8.0)"),
        ("dynamic-ntk:2", "MaxBias(factor=4.0)"),
    ],
)
def test_other_slopes_are_refused_with_the_nearest(
    scaling: str, nearest: str, bloom: Any, tokenizer: Any, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="method must have the slopes of one max_alibi") as error:
        na.export(bloom, tmp_path / "a.gguf", scaling, tokenizer=tokenizer)
    assert str(error.value).endswith(f"the nearest that has them is {nearest}")
    assert os.listdir(tmp_path) == []


def test_what_a_file_cannot_say_is_refused(bloom: Any, tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"

    def refused(match: str, model: Any = bloom, **options: Any) -> None:
        with pytest.raises(ValueError, match=match):
            na.export(model, path, **{"tokenizer": tokenizer, **options})
        assert os.listdir(tmp_path) == []

    refused("model must be of BLOOM or MPT for format 'gguf', got a Falcon", make_model("falcon"))
    refused("model must have a language model head", bloom.transformer)
    refused("cache must be True for format 'gguf'", cache=False)
    refused("log_n must be None for format 'gguf'", method="max-bias:2:logn=0.5")
    refused("method must be no bias", method=na.ALiBi(8))
    with na.patch(bloom, window=16):
        refused("window, sink and causal_block must not be given for format 'gguf'")
    residual = make_model("bloom", apply_residual_connection_post_layernorm=True, vocab_size=640)
    refused("apply_residual_connection_post_layernorm must be False", residual)
    refused("softmax_scale must be None or 0.25 for", mpt(tokenizer, softmax_scale=0.5))
    narrow = transformers.BloomConfig(vocab_size=640, hidden_size=48, n_layer=1, n_head=4)
    narrow = transformers.BloomForCausalLM(narrow)
    refused("the width of token_embd.weight must be a multiple of", narrow, dtype="q8_0")


def test_numbers_beyond_the_dtype_are_refused(tokenizer: Any, tmp_path: Path) -> None:
    model = mpt(tokenizer)
    model.transformer.wte.weight.data[3, 4] = 70000.0
    message = "dtype must hold the weights of token_embd.weight, up to 70000, got 'float16'"
    with pytest.raises(ValueError, match=message):
        na.export(model, tmp_path / "a.gguf", dtype="float16", tokenizer=tokenizer)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_weights_without_numbers_are_not_blamed_on_the_dtype(
    wrong: float, tokenizer: Any, tmp_path: Path
) -> None:
    model = mpt(tokenizer)
    model.transformer.wte.weight.data[3, 4] = wrong
    with pytest.raises(ValueError, match=r"model must have finite weights, got .* token_embd"):
        na.export(model, tmp_path / "a.gguf", tokenizer=tokenizer)
    assert os.listdir(tmp_path) == []


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")  # of peft's
def test_adapters_are_merged_first(tokenizer: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        target_modules=["query_key_value"], init_lora_weights=False, task_type="CAUSAL_LM"
    )
    model = make_model("bloom", vocab_size=len(tokenizer), layers=1)
    adapted = peft.get_peft_model(model, config)
    with pytest.raises(ValueError, match=r"model must have plain layers .* merge adapters first"):
        na.export(adapted, tmp_path / "a.gguf", tokenizer=tokenizer)
    na.export(adapted.merge_and_unload(), tmp_path / "a.gguf", tokenizer=tokenizer)


def of_words() -> Any:
    return trained_tokenizer(
        tokenizers.pre_tokenizers.Whitespace(),
        {"unk_token": "[UNK]", "eos_token": "[SEP]"},
        tokenizers.models.WordPiece(unk_token="[UNK]"),
        tokenizers.trainers.WordPieceTrainer,
    )


def test_other_tokenizers_are_refused(bloom: Any, tmp_path: Path) -> None:
    without_eos, spaced, twice = like_bloom(), like_mpt(), like_mpt()
    without_eos.eos_token = None
    spaced.backend_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    twice.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A the", special_tokens=[("the", 300)]
    )
    larger = like_mpt()
    larger.add_tokens([f"added {i}" for i in range(4)])
    for tokenizer, message in (
        (None, "tokenizer must be given for format 'gguf' where the model was not loaded from"),
        (without_eos, "tokenizer must have an eos_token"),
        (spaced, "tokenizer must be a byte-level BPE .* got pre_tokenizer {'type': 'ByteLevel'"),
        (of_words(), "tokenizer must be a byte-level BPE .* got model 'WordPiece'"),
        (twice, "tokenizer must add no tokens to a text but bos and eos"),
        (larger, f"tokenizer must have tokens below {bloom.config.vocab_size}"),
        (Slow(), "tokenizer must be a fast one for format 'gguf', got Slow"),
    ):
        with pytest.raises(ValueError, match=message):
            na.export(bloom, tmp_path / "a.gguf", tokenizer=tokenizer)
    assert os.listdir(tmp_path) == []


class Slow:
    def __call__(self, text: str) -> Any:
        return {"input_ids": []}

    def decode(self, tokens: Any) -> str:
        return ""


def test_a_full_disk_leaves_the_file_that_was_there(
    bloom: Any, tokenizer: Any, tmp_path: Path
) -> None:
    (tmp_path / "a.gguf").write_text("old")
    with full_disk(100_000), pytest.raises(OSError, match=r"a\.gguf'$"):
        na.export(bloom, tmp_path / "a.gguf", tokenizer=tokenizer, overwrite=True)
    assert (tmp_path / "a.gguf").read_text() == "old"
    assert os.listdir(tmp_path) == ["a.gguf"]


def test_the_tokenizer_of_a_checkpoint_is_found(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ntk_alibi.cli import main

    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_checkpoint)
    with pytest.warns(UserWarning, match="overlap"):
        exported = na.export(model, tmp_path / "a.gguf", "max-bias:4")
    main(f"export --model {tiny_checkpoint} --method max-bias:4 -o {tmp_path}/b.gguf".split())
    printed = capsys.readouterr()
    assert f"{tmp_path}/b.gguf: gguf, float32" in printed.out
    assert "layer 1 of 1: 12 tensors" in printed.err
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert exported.size == (tmp_path / "a.gguf").stat().st_size

"""Checkpoints: their names, and damaged ones, which are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file, save_file

import ntk_alibi as na
from ntk_alibi.cli import main
from ntk_alibi.evaluation.harness.model import StretchedLM
from ntk_alibi.models import load
from ntk_alibi.models.loading import checkpoint_name, load_as, load_outline, nano_bloom_path

pytestmark = pytest.mark.slow  # needs the evaluation harness


def test_the_embedded_model_has_a_name() -> None:
    assert checkpoint_name("nano-bloom") == checkpoint_name(None) == str(nano_bloom_path())
    assert load("nano-bloom")[0].num_parameters() == load()[0].num_parameters()


def test_a_folder_of_that_name_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nano-bloom").mkdir()
    monkeypatch.chdir(tmp_path)
    assert checkpoint_name("nano-bloom") == "nano-bloom"
    with pytest.raises(ValueError, match="model must be a folder with config"):
        load("nano-bloom")


def test_others_are_as_they_come(tmp_path: Path) -> None:
    assert checkpoint_name("bigscience/bloom-560m") == "bigscience/bloom-560m"
    assert checkpoint_name(tmp_path) == str(tmp_path)


def test_a_model_is_no_name() -> None:
    with pytest.raises(TypeError, match=r"a folder or a name on the hub, got BloomForCausalLM$"):
        load(load()[0])  # type: ignore[arg-type]


def test_a_name_that_the_hub_does_not_give_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = "'nobody/no-model' is not a local folder, and could not be loaded from the hub: "
    with pytest.raises(OSError, match=message):
        load("nobody/no-model")


def test_a_name_is_not_waited_for_where_there_is_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers asks six times for each of two files, in 50 seconds."""
    asked: list[str] = []

    def unreachable(url: str, **_: Any) -> None:
        asked.append(url)
        raise RuntimeError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.file_download.get_hf_file_metadata", unreachable)
    loads: list[Callable[[str], object]] = [load, StretchedLM]
    for loaded in loads:
        with pytest.raises(OSError, match=r"^'nobody/blom' is not a local folder.*not known$"):
            loaded("nobody/blom")
    assert len(asked) == len(loads)


def test_what_cannot_be_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model must be a folder .* hub, got 'models/my/bloom'"):
        load("models/my/bloom")


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    shutil.copytree(nano_bloom_path(), tmp_path, dirs_exist_ok=True)
    for file in tmp_path.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ValueError, match=r"which has no tokenizer: write it there with tokenizer"):
        load(tmp_path)


@pytest.fixture
def stretched(tmp_path: Path) -> Path:
    """Return the folder of a model that was saved with a patch."""
    model, tokenizer, _ = load()
    with na.patch(model, "max-bias:4", window=40):
        model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_a_saved_patch_is_followed(stretched: Path) -> None:
    stock, *_ = load()
    ids = torch.arange(60)[None]
    with torch.no_grad(), na.patch(stock, "max-bias:4", window=40):
        expected = stock(ids).logits
    model, *_ = load(stretched)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, expected, atol=1e-4, rtol=0)
        assert [patch.scaling for patch in na.patched(model)] == [na.MaxBias(4.0)]
        with na.patch(model, "original"):
            plain = model(ids).logits
        torch.testing.assert_close(plain, stock(ids).logits, atol=1e-4, rtol=0)


def test_commands_compare_with_the_model_as_it_was_trained(stretched: Path) -> None:
    outline, _ = load_outline(stretched)
    model, _ = load_as(stretched, "float32", saved=False)
    for made in (outline, model):
        assert na.patched(made) == []
        assert made.config.ntk_alibi == {"method": "max-bias:4", "window": 40}


def test_export_writes_a_saved_scaling(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gguf", reason="pip install 'ntk-alibi[gguf]'")
    model, tokenizer, _ = load()
    with na.patch(model, "max-bias:4"):
        model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.chdir(tmp_path)
    main(["export", "--model", str(tmp_path), "-o", "own.gguf"])
    assert "model: BLOOM, MaxBias(factor=4.0)\n" in capsys.readouterr().out
    main(["export", "--model", str(tmp_path), "--method", "max-bias:2", "-o", "given.gguf"])
    assert "model: BLOOM, MaxBias(factor=2.0)\n" in capsys.readouterr().out


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    weights = {name: x.clone() for name, x in load_file(path).items()}  # the file is not held
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


def cut(folder: Path, name: str, size: int) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:size])


#: For each damage, a function that does it to a folder, and what the error says.
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a layer too few": (
        lambda folder: change_config(folder, n_layer=2),
        "whole checkpoint .*12 weights are missing, first transformer.h.1.input_layernorm.bias",
    ),
    "a weight too few": (
        lambda folder: change_weights(folder, lambda w: w.pop("transformer.ln_f.bias")),
        "1 weights are missing, first transformer.ln_f.bias",
    ),
    "a wrong shape": (
        lambda folder: change_weights(
            folder, lambda w: w.update({"transformer.ln_f.bias": torch.zeros(5)})
        ),
        "1 weights have other shapes, first transformer.ln_f.bias",
    ),
    "NaN": (
        lambda folder: change_weights(folder, lambda w: [t.fill_(torch.nan) for t in w.values()]),
        "model must have finite weights, got NaN or infinity in transformer.word_embeddings.weight",
    ),
    "truncated weights": (
        lambda folder: cut(folder, "model.safetensors", 5000),
        "whole checkpoint .*SafetensorError: .*file not fully covered",
    ),
    "empty tokenizer": (lambda folder: cut(folder, "tokenizer.json", 0), "whole checkpoint"),
    "tokenizer without tokens": (
        lambda folder: (folder / "tokenizer.json").write_text("{}"),
        "whole checkpoint .*KeyError",
    ),
    "config of another type": (
        lambda folder: (folder / "config.json").write_text("null"),
        "whole checkpoint .*TypeError",
    ),
    "no heads": (
        lambda folder: change_config(folder, n_head=0),
        "whole checkpoint .*ZeroDivisionError",
    ),
    "unknown method": (
        lambda folder: change_config(folder, ntk_alibi={"method": "yarn"}),
        r"^config\.ntk_alibi must .*'yarn'",
    ),
    "patch of another type": (
        lambda folder: change_config(folder, ntk_alibi=[4]),
        r"^config\.ntk_alibi must be a dict",
    ),
    "misspelled key": (
        lambda folder: change_config(folder, ntk_alibi={"methods": "ntk:4"}),
        r"^config\.ntk_alibi must .* did you mean method\?",
    ),
    "negative window": (
        lambda folder: change_config(folder, ntk_alibi={"window": -3}),
        r"^config\.ntk_alibi must .* window must be between 1 and",
    ),
    "negative training length": (
        lambda folder: change_config(folder, seq_length=-4),
        "seq_length of the model's config must be between 1 and",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_refused(
    damage: Callable[[Path], object], message: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "damaged")
    damage(folder)
    for loaded in (load, lambda name: StretchedLM(str(name), quiet=True)):
        with pytest.raises((ValueError, TypeError), match=message):
            loaded(folder)


def test_a_model_of_nan_is_refused_by_the_harness_too(tiny_checkpoint: Path) -> None:
    model, tokenizer, _ = load(tiny_checkpoint)
    torch.nn.init.constant_(model.transformer.ln_f.bias, torch.nan)
    with pytest.raises(ValueError, match="model must have finite weights"):
        StretchedLM(model, tokenizer=tokenizer)


def test_tied_weights_and_valid_settings_are_accepted(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    assert "lm_head.weight" not in load_file(tiny_checkpoint / "model.safetensors")
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "scaled")
    change_config(folder, ntk_alibi={"method": "ntk:4", "window": 32})
    model, _, train_length = load(folder)
    assert train_length == 64
    assert [patch.scaling for patch in na.patched(model)] == [na.NTK(4.0)]

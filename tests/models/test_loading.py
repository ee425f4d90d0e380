"""Checkpoint names: the embedded model, folders and hub names."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")

from ntk_alibi.models import load
from ntk_alibi.models.loading import checkpoint_name, nano_bloom_path


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

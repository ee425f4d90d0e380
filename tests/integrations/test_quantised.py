"""Patched models with weights that torchao and bitsandbytes have quantised."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import ntk_alibi as na
from ntk_alibi.evaluation.records import corpus
from ntk_alibi.models import load
from repository import ROOT, make_environment, run_tests

METHOD = "flat:4"

quiet = pytest.mark.filterwarnings(
    "ignore:.*inputs will be cast from torch.float32 to float16:UserWarning",
    "ignore:.*opaque value type:FutureWarning",
)


def by_torchao(folder: Path) -> Any:
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    return model


def by_bitsandbytes(**bits: Any) -> Callable[[Path], Any]:
    def quantised(folder: Path) -> Any:
        pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
        config = transformers.BitsAndBytesConfig(**bits)
        return transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=config)

    return quantised


WAYS = {
    "Int8WeightOnlyConfig()": by_torchao,
    "BitsAndBytesConfig(load_in_8bit=True)": by_bitsandbytes(load_in_8bit=True),
    "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32)": by_bitsandbytes(
        load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32
    ),
}


@quiet
@pytest.mark.parametrize("way", WAYS)
def test_quantisation_changes_a_patched_model_as_the_page_says(way: str, tmp_path: Path) -> None:
    """The libraries choose kernels by the processor, so figures of another one may differ."""
    page = (ROOT / "docs/fine-tune.md").read_text("utf-8")
    row = re.search(rf"^\| `{re.escape(way)}` \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert row is not None
    model, tokenizer, _ = load()
    model.save_pretrained(tmp_path)
    text = corpus.held_out_text()[0]
    ids = tokenizer(text, return_tensors="pt")["input_ids"][:, :300]

    def logits(model: Any) -> list[torch.Tensor]:
        with torch.no_grad():
            stock = model(ids).logits
            with na.patch(model, METHOD):
                return [stock, model(ids).logits]

    changes = [
        (quantised - full).abs().max().item()
        for quantised, full in zip(logits(WAYS[way](tmp_path)), logits(model), strict=True)
    ]
    assert changes == pytest.approx([float(cell) for cell in row.groups()], rel=0.25)


@pytest.mark.long
@pytest.mark.slow
def test_the_page_runs_with_both_libraries(tmp_path: Path) -> None:
    python = make_environment(
        tmp_path / "venv", "torchao>=0.18,<1", "bitsandbytes>=0.50,<1", "trl>=1.16,<2"
    )
    here = Path(__file__).relative_to(ROOT)
    page = "tests/test_docs.py::test_the_examples_to_copy_run_and_print_what_they_say[fine-tune]"
    escapes = ("-W", "ignore:invalid escape sequence")  # in sources of torchao
    printed = run_tests(
        python, "-m", "", *escapes, str(here), page, "--deselect", f"{here}::{NAME}"
    )
    assert "skipped" not in printed


NAME = test_the_page_runs_with_both_libraries.__name__

"""torch.compile of whole patched models: no layer is compiled anew because of its number."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import transformers

import ntk_alibi as na
from family_models import make_model


class Warnings(logging.Handler):
    """Counts the warnings of Dynamo that it gives up."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "recompile_limit" in record.getMessage()


def inner(name: str, layers: int) -> Any:
    if name in ("bloom", "mpt", "falcon"):
        return make_model(name, layers=layers).transformer
    torch.manual_seed(0)
    if name == "MPNet":
        sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 32}
        config = transformers.MPNetConfig(vocab_size=64, num_hidden_layers=layers, **sizes)
        return transformers.MPNetModel(config).eval()
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_heads": 4}
    config = transformers.T5Config(vocab_size=64, num_layers=layers, **sizes)
    return transformers.T5EncoderModel(config).eval()


def graphs(name: str, layers: int) -> int:
    """Return the number of graphs of a patched model, which computes what it does uncompiled."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    model, ids, heard = inner(name, layers), torch.arange(9)[None] + 3, Warnings()
    logging.getLogger("torch._dynamo").addHandler(heard)
    try:
        with torch.no_grad(), na.patch(model):
            expected = model(ids)[0]
            found = torch.compile(model, backend="eager")(ids)[0]
    finally:
        logging.getLogger("torch._dynamo").removeHandler(heard)
        torch.compiler.reset()
    assert heard.count == 0
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0.0)
    count: int = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return count


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon", "T5", "MPNet"])
def test_more_layers_need_no_more_graphs(name: str) -> None:
    assert graphs(name, 12) <= graphs(name, 2)

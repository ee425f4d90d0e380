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


def graphs(name: str, layers: int, **patch: Any) -> int:
    """Return the number of graphs of a patched model, which computes what it does uncompiled.

    It runs without a mask, and with padding that the graphs of the first call do not know.
    """
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    model, ids, heard = inner(name, layers), torch.arange(18).view(2, 9) + 3, Warnings()
    mask = (torch.arange(9) >= torch.tensor([[0], [3]])).long()
    logging.getLogger("torch._dynamo").addHandler(heard)
    try:
        with torch.no_grad(), na.patch(model, **patch):
            compiled = torch.compile(model, backend="eager")
            expected = model(ids)[0], model(ids, attention_mask=mask)[0][mask != 0]
            found = compiled(ids)[0], compiled(ids, attention_mask=mask)[0][mask != 0]
    finally:
        logging.getLogger("torch._dynamo").removeHandler(heard)
        torch.compiler.reset()
    assert heard.count == 0
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0.0)
    count: int = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return count


# transformers' own GELU of BLOOM, in Dynamo:
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon", "T5", "MPNet"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        *(pytest.param(x, marks=pytest.mark.slow) for x in ({"window": 4}, {"attention": "eager"})),
    ],
    ids=str,
)
def test_more_layers_need_no_more_graphs(name: str, options: dict[str, Any]) -> None:
    assert graphs(name, 12, **options) <= graphs(name, 2, **options)

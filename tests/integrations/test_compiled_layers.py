"""torch.compile of whole patched models: no layer is compiled anew because of its number."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import transformers

import ntk_alibi as na
from family_models import make_model
from ntk_alibi.integrations.arguments import CACHE


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


IDS = torch.arange(18).view(2, 9) + 3
MASK = (torch.arange(9) >= torch.tensor([[0], [3]])).long()


def prompts(model: Any) -> list[torch.Tensor]:
    """Run a prompt without a mask, and one with padding that the first graphs do not know."""
    return [model(IDS)[0], model(IDS, attention_mask=MASK)[0][MASK != 0]]


def tokens_of_a_cache(model: Any) -> list[torch.Tensor]:
    """Run a prompt with padding, two tokens and a last part."""
    cache = {CACHE: transformers.DynamicCache()}
    parts = ((0, 5), (5, 6), (6, 7), (7, 9))
    return [model(IDS[:, a:b], attention_mask=MASK[:, :b], **cache)[0][:, -1] for a, b in parts]


def graphs(name: str, layers: int, calls: Any = prompts, **patch: Any) -> int:
    """Return the number of graphs of a patched model, which computes what it does uncompiled."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    model, heard = inner(name, layers), Warnings()
    logging.getLogger("torch._dynamo").addHandler(heard)
    try:
        with torch.no_grad(), na.patch(model, **patch):
            expected, found = calls(model), calls(torch.compile(model, backend="eager"))
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon"])
@pytest.mark.parametrize("options", [{}, {"attention": "eager"}], ids=str)
def test_nor_do_they_with_a_cache(name: str, options: dict[str, Any]) -> None:
    few = graphs(name, 2, tokens_of_a_cache, **options)
    assert graphs(name, 12, tokens_of_a_cache, **options) <= few

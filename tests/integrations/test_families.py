"""All model families: patched models against transformers and an independent computation."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import ntk_alibi as na
from model_runs import (
    LENGTH,
    LOGITS,
    drop_weights,
    enable_checkpointing,
    run,
)
from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.integrations.family import REGISTERED
from repository import ROOT
from small_models import VOCABULARY, attentions, families, make_model


def test_the_page_of_models_names_every_family() -> None:
    page = (ROOT / "docs/models.md").read_text("utf-8")
    rows = "".join(re.findall(r"^\| .*\n", page, re.M))
    ours = [x.name for x in REGISTERED.values() if x.forward.__module__.startswith("ntk_alibi.")]
    assert {"BLOOM", "JinaBERT", "T5"} <= set(ours)
    assert [name for name in ours if not re.search(rf"\b{name}\b", rows)] == []


@families
@pytest.mark.parametrize(
    ("attention", "message"), [("fused", "let a patch stay until"), ("traceable", None)]
)
def test_undoing_before_a_checkpointed_backward_is_an_error(
    ids: torch.Tensor, name: str, attention: Any, message: str | None
) -> None:
    model = make_model(name).train()
    enable_checkpointing(model)
    with na.patch(model, na.NTK(2.0), attention=attention):
        loss = model(ids, labels=ids, use_cache=False).loss
    with pytest.raises(RuntimeError, match=message):
        loss.backward()


@families
@pytest.mark.parametrize("attention", ["fused", "eager", "traceable"])
def test_dropout_in_training(ids: torch.Tensor, name: str, attention: Any) -> None:
    model = make_model(name).train()
    drop_weights(model.modules())
    with na.patch(model, na.NTK(2.0), attention=attention):
        a, b = (model(ids, use_cache=False).logits for _ in range(2))
        assert (a - b).abs().max() > 1e-3
        model.eval()
        assert torch.equal(run(model, ids), run(model, ids))


class Largest(TorchDispatchMode):
    """The greatest number of bytes that the result of an operation stores."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        results = function(*args, **(kwargs or {}))
        for result in results if isinstance(results, tuple | list) else (results,):
            if isinstance(result, torch.Tensor):
                self.numbers = max(self.numbers, result.untyped_storage().nbytes())
        return results


@families
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    "options",
    [{"method": na.NTK(2.0)}, {"window": 64, "sink": 4}],
    ids=str,
)
def test_no_matrix_of_all_queries_and_keys_is_built(
    shallow: dict, name: str, padded: bool, options: dict[str, Any]
) -> None:
    length = 4096
    ids = torch.zeros((1, length), dtype=torch.long)
    mask = (torch.arange(length) >= 5).long()[None] if padded else None
    with na.patch(shallow[name], **options), Largest() as largest:
        run(shallow[name], ids, mask, logits_to_keep=1)
    assert largest.numbers < length * length  # bytes: less than a boolean for each pair


@pytest.mark.parametrize("name", ["bloom", "falcon"])
@pytest.mark.parametrize("dropping", [False, True])
def test_dropout_follows_its_module(ids: torch.Tensor, name: str, dropping: bool) -> None:
    """Monte Carlo dropout drops in evaluation; a module may also be in evaluation in training."""
    model = make_model(name).train(not dropping)
    layers = [x for x in model.modules() if hasattr(x, "attention_dropout")]
    for layer in layers:
        layer.attention_dropout = torch.nn.Dropout(0.5).train(dropping)
        layer.hidden_dropout = 0.0
    with na.patch(model, "original"), torch.no_grad():
        first, again = (model(ids).logits for _ in range(2))
        assert bool((first != again).any()) == dropping
        for layer in layers:
            layer.attention_dropout = torch.nn.Identity()
        torch.testing.assert_close(model(ids).logits, model(ids).logits, rtol=0, atol=0)
        layers[0].attention_dropout = torch.nn.AlphaDropout(0.5)
        with pytest.raises(ValueError, match="dropout of weights must be torch's Dropout or Id"):
            model(ids)


@families
def test_dropout_builds_no_matrix_of_all_queries_and_keys(name: str) -> None:
    length = 2048
    model = make_model(name, 1).train()
    drop_weights(model.modules())
    with na.patch(model, na.NTK(2.0)), Largest() as largest:
        model(torch.zeros((1, length), dtype=torch.long), use_cache=False, logits_to_keep=1)
    assert largest.numbers < length * length


@families
def test_bfloat16_is_nearer_to_float32_than_stock(name: str) -> None:
    """Stock models round absolute positions to bfloat16, where 256 and 257 are the same."""
    model = make_model(name, **({"max_seq_len": 512} if name == "mpt" else {}))
    ids = torch.randint(0, VOCABULARY, (1, 512), generator=torch.Generator().manual_seed(0))
    half = copy.deepcopy(model).bfloat16()
    with na.patch(model):  # stock Falcon rounds its bias to bfloat16 in float32, too
        exact = run(model, ids)
    stock = (run(half, ids).float() - exact).square().mean()
    with na.patch(half):
        ours = (run(half, ids).float() - exact).square().mean()
    assert ours < (0.5 if name == "bloom" else 1.0) * stock


@families
@attentions
def test_output_attentions_with_a_static_cache(
    models: dict, ids: torch.Tensor, name: str, attention: Any
) -> None:
    """Weights have a column for each place of the cache, and are 0 where no token stands yet."""

    def weights(places: int) -> torch.Tensor:
        cache = transformers.StaticCache(models[name].config, max_cache_len=places)
        options = {CACHE: cache, "use_cache": True, "output_attentions": True}
        with torch.no_grad():
            attentions = models[name](ids, **options).attentions
        return torch.stack(attentions)

    with na.patch(models[name], na.NTK(4.0), attention=attention):
        expected, more = weights(LENGTH), weights(LENGTH + 5)
    assert more.shape[-1] == LENGTH + 5
    assert torch.equal(more[..., :LENGTH], expected)
    assert more[..., LENGTH:].abs().max() == 0.0


def check_traces(model: Any, logits: Any, ids: torch.Tensor) -> None:
    graph = make_fx(logits)(ids)
    torch.testing.assert_close(graph(ids.flip(1)), logits(ids.flip(1)), **LOGITS)
    program = torch.export.export(model, (ids,), {"use_cache": False}).module()
    traced = program(ids.flip(1), use_cache=False).logits
    torch.testing.assert_close(traced, logits(ids.flip(1)), **LOGITS)


@families
def test_traced_otherwise(shallow: dict, ids: torch.Tensor, name: str) -> None:
    """The eager form reads no number of the mask; the others refuse to be traced."""

    def logits(ids: torch.Tensor) -> torch.Tensor:
        return shallow[name](ids, use_cache=False).logits

    with torch.no_grad(), na.patch(shallow[name], na.NTK(4.0), attention="eager"):
        check_traces(shallow[name], logits, ids)
    dynamic = na.DynamicNTK(2.0, 16)
    read = "attention_mask must not be a tensor where torch traces"
    with (
        torch.no_grad(),
        na.patch(shallow[name], dynamic, attention="eager"),
        pytest.raises(ValueError, match=read),
    ):
        make_fx(logits)(ids)
    message = "attention must be 'traceable' where .* traces a patched model"
    with torch.no_grad(), na.patch(shallow[name], na.NTK(4.0)):
        with pytest.raises(ValueError, match=message):
            make_fx(logits)(ids)
        with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(ValueError, match=message):
            logits(torch.zeros((1, 7), dtype=torch.long))
        with pytest.raises(ValueError, match=message):
            torch.export.export(shallow[name], (ids,), {"use_cache": False})


@pytest.mark.needs("transformers >= 5.18", "torch.jit.trace cannot follow how it makes masks")
@families
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_torch_jit_traces_the_traceable_form_alone(shallow: dict, name: str) -> None:
    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = shallow[name]

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.model(ids, attention_mask=mask, use_cache=False).logits
            return logits

    first, second = torch.randint(3, 60, (2, 2, 9))
    mask = torch.ones_like(first)
    padded = torch.arange(9) >= torch.tensor([[4], [0]])
    for form in ("fused", "eager"):
        with torch.no_grad(), na.patch(shallow[name], na.NTK(4.0), attention=form):
            with pytest.raises(ValueError, match=r"must be 'traceable' where torch.jit.trace"):
                torch.jit.trace(Logits(), (first, mask))
            with pytest.raises(ValueError, match=r"model must not go through .*torch.jit.script"):
                torch.jit.script(Logits())
    with torch.no_grad(), na.patch(shallow[name], na.NTK(4.0), attention="traceable"):
        traced = torch.jit.trace(Logits(), (first, mask))
        expected = Logits()(second, padded.long())
    torch.testing.assert_close(traced(second, padded.long())[padded], expected[padded], **LOGITS)

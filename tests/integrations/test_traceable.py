"""attention="traceable": plain torch, equal to the fused form, in one graph, and its refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.fx.experimental.proxy_tensor import make_fx

import ntk_alibi as na
from model_runs import (
    LENGTH,
    LOGITS,
    LONG,
    LONG_MASK,
    MASKS,
    Logits,
    assert_gradients_close,
    run,
)
from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.torch import learned_bias
from small_models import families, make_model

_AXES = {
    0: torch.export.Dim("batch", min=1, max=64),
    1: torch.export.Dim("length", min=2, max=4096),
}

#: Dynamic shapes of tokens and padding mask.
SHAPES = (_AXES, _AXES)


OPTIONS = [
    {"method": na.NTK(4.0)},
    {"method": na.NTK(4.0), "log_n": na.LogN(8, tuple(np.linspace(0, 2, 8)))},
]

#: The smallest family in the quick tests, and the others in the slow ones.
compiled_families = pytest.mark.parametrize(
    "name", ["falcon", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bloom", "mpt"))]
)


def test_texts_longer_than_an_mpt_was_made_for(models: dict) -> None:
    long = torch.arange(200)[None] % 64
    with na.patch(models["mpt"], na.NTK(4.0)):
        expected = run(models["mpt"], long)
    with na.patch(models["mpt"], na.NTK(4.0), attention="traceable"):
        torch.testing.assert_close(run(models["mpt"], long), expected, **LOGITS)


@pytest.mark.needs("torch >= 2.10", "older ones lose track of a product of sizes")
@families
@pytest.mark.parametrize(
    "strict", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["non-strict", "strict"]
)
@pytest.mark.parametrize(
    "options",
    [OPTIONS[0], pytest.param(OPTIONS[1], marks=pytest.mark.slow)],
    ids=["slopes", "log_n"],
)
def test_exported_for_any_batch_and_length(
    shallow: dict, ids: torch.Tensor, name: str, strict: bool, options: Any
) -> None:
    model, arguments = Logits(shallow[name]), (ids, MASKS["left"])
    with na.patch(model, **options), torch.no_grad():
        expected = model(LONG, LONG_MASK)
    with na.patch(model, **options, attention="traceable"), torch.no_grad():
        program = torch.export.export(model, arguments, dynamic_shapes=SHAPES, strict=strict)
    exported, kept = program.module()(LONG, LONG_MASK), LONG_MASK.bool()
    torch.testing.assert_close(exported[kept], expected[kept], **LOGITS)


@families
def test_traced_by_make_fx(models: dict, ids: torch.Tensor, name: str) -> None:
    """Falcon of transformers 5.24 reads its positions where it has no mask."""
    logits, mask = Logits(models[name]), [torch.ones_like(ids)]
    mask = mask if name == "falcon" and CACHE == "cache" else []
    with torch.no_grad(), na.patch(models[name], na.NTK(4.0), attention="traceable"):
        graph = make_fx(logits)(ids, *mask)
        torch.testing.assert_close(graph(ids.flip(1), *mask), logits(ids.flip(1)), **LOGITS)


# Dynamo warns so where it maps the function of a mask, as transformers 5.4 does.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@compiled_families
@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
def test_compiled_in_one_graph(shallow: dict, ids: torch.Tensor, name: str, backend: str) -> None:
    model = shallow[name]
    torch.compiler.reset()
    with na.patch(model, na.NTK(4.0)):
        expected, unpadded = run(model, LONG, LONG_MASK), run(model, ids)
    with na.patch(model, na.NTK(4.0), attention="traceable"):
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        kept = LONG_MASK.bool()
        torch.testing.assert_close(run(compiled, LONG, LONG_MASK)[kept], expected[kept], **LOGITS)
        torch.testing.assert_close(run(compiled, ids), unpadded, **LOGITS)
    torch.compiler.reset()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            "bloom",
            marks=[
                pytest.mark.needs("transformers >= 5.22", "it reads how many tokens are cached"),
                pytest.mark.slow,
            ],
        ),
        pytest.param("mpt", marks=pytest.mark.slow),
        "falcon",
    ],
)
def test_a_static_cache_in_one_graph(shallow: dict, ids: torch.Tensor, name: str) -> None:
    """The number of tokens in the cache is a tensor, so that one graph serves all steps."""
    model = shallow[name]
    torch.compiler.reset()
    with na.patch(model, na.NTK(4.0)):
        expected = run(model, ids)[:, 30:]
    with na.patch(model, na.NTK(4.0), attention="traceable"):
        cache = transformers.StaticCache(model.config, max_cache_len=LENGTH)
        run(model, ids[:, :30], **{CACHE: cache}, use_cache=True)
        graphs: list[Any] = []

        def count(graph: Any, _: Any) -> Any:
            graphs.append(graph)
            return graph

        step = torch.compile(model, fullgraph=True, dynamic=False, backend=count)
        steps = [
            run(step, ids[:, i : i + 1], **{CACHE: cache}, use_cache=True)
            for i in range(30, LENGTH)
        ]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, **LOGITS)
    assert len(graphs) <= 2
    torch.compiler.reset()


@pytest.mark.slow
@families
def test_compiled_gradients(ids: torch.Tensor, name: str) -> None:
    def of(compiled: bool) -> list[torch.Tensor]:
        model = make_model(name).train()
        with na.patch(model, na.NTK(4.0), attention="traceable"):
            step = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
            step(ids, labels=ids, use_cache=False).loss.backward()
        return [parameter.grad for parameter in model.parameters()]

    torch.compiler.reset()
    assert_gradients_close(of(True), of(False))
    torch.compiler.reset()


@compiled_families
def test_other_forms_say_which_way_to_take(shallow: dict, ids: torch.Tensor, name: str) -> None:
    model = Logits(shallow[name])
    torch.compiler.reset()
    message = r"use patch\(model, method, attention='traceable'\)"
    for attention in ("fused", "eager"):
        refused = pytest.raises(torch._dynamo.exc.Unsupported, match=message)
        with na.patch(model, learned_bias.LearnedKerpleLog(8), attention=attention), refused:
            torch.compile(model, fullgraph=True, backend="eager")(ids)
        with na.patch(model, na.NTK(4.0), attention=attention), torch.no_grad(), refused:
            torch.export.export(model, (ids,), strict=True)
    with (
        na.patch(model, na.NTK(4.0)),
        pytest.raises(ValueError, match=message),
        torch.no_grad(),
    ):
        torch.export.export(model, (ids,), strict=False)
    torch.compiler.reset()


@families
def test_slopes_keep_their_dtype_in_a_converted_model(ids: torch.Tensor, name: str) -> None:
    model, other = make_model(name), make_model(name)
    with na.patch(model, na.NTK(4.0), attention="traceable"):
        model.bfloat16()
        half = run(model, ids).float()
        other.bfloat16()
        with na.patch(other, na.NTK(4.0), attention="traceable"):
            assert torch.equal(half, run(other, ids).float())
        dtypes = {x.dtype for part, x in model.named_buffers() if part.endswith("bias.slopes")}
    assert dtypes == {torch.float32}

"""Advice in the errors of patched models: obeyed, it gives the right result."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

import ntk_alibi as na
from model_runs import LOGITS
from ntk_alibi.integrations.arguments import CACHE
from small_models import make_model

IDS = torch.arange(24).reshape(2, 12) % 17 + 3
STEP = IDS[:, :1]


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    torch.testing.assert_close(found, expected, **LOGITS)
    return True


def logits(model: Any, *args: Any, **given: Any) -> torch.Tensor:
    output: torch.Tensor = model(*args, **given).logits
    return output


def states(output: Any) -> torch.Tensor:
    found: torch.Tensor = output.last_hidden_state
    return found


def patched(model: Any, *args: Any, **given: Any) -> torch.Tensor:
    """Return the logits of a model that is patched for this call."""
    with na.patch(model, *args, **given):
        return logits(model, IDS)


def traced(attention: Any) -> torch.Tensor:
    model = make_model("bloom")
    with na.patch(model, na.NTK(4.0), attention=attention):
        program: Any = torch.export.export(model, (IDS,), {"use_cache": False}, strict=False)
        output: torch.Tensor = program.module()(IDS, use_cache=False).logits
        return output


def after(model: Any, cache: Any, ids: torch.Tensor = STEP) -> torch.Tensor:
    """Return the logits of tokens after a prompt."""
    model(IDS, **{CACHE: cache}, use_cache=True)
    return logits(model, ids, **{CACHE: cache}, use_cache=True)


def shortened(cache: Any) -> torch.Tensor:
    """Take tokens back from a cache, and give one again."""
    model = make_model("bloom")
    with na.patch(model, window=5):
        model(IDS, **{CACHE: cache}, use_cache=True)
        cache.crop(-2)
        return logits(model, IDS[:, 10:], **{CACHE: cache}, use_cache=True)[:, -1]


def other_texts(cache: Any) -> torch.Tensor:
    model = make_model("bloom")
    with na.patch(model):
        model(IDS, **{CACHE: cache}, use_cache=True)
        return logits(model, IDS[:1], **{CACHE: cache}, use_cache=True)


def in_memory(dtype: Any = "int8", grad: bool = True) -> torch.Tensor:
    model = make_model("bloom")
    with na.patch(model), torch.set_grad_enabled(grad):
        return after(model, na.GrowingCache(dtype=dtype))


def of_replaced_layer(again: bool) -> torch.Tensor:
    model = make_model("bloom")
    na.patch(model, na.NTK(4.0))
    block = model.transformer.h[1]
    block.self_attention = copy.deepcopy(make_model("bloom").transformer.h[1].self_attention)
    if again:
        na.unpatch(model)
        na.patch(model, na.NTK(4.0))
    return logits(model, IDS)


def texts(one_a_row: bool) -> torch.Tensor:
    """Give two texts of 4 and 6 tokens, with padding, in one row or in two."""
    model, first, second = make_model("bloom"), IDS[0, :4], IDS[1, :6]
    ids = torch.cat([first, second])[None]
    with na.patch(model):
        if not one_a_row:
            positions = torch.cat([torch.arange(4), torch.arange(6)])[None]
            mask = torch.ones_like(ids)
            mask[0, 0] = 0
            return states(model.transformer(ids, attention_mask=mask, position_ids=positions))
        ids = torch.stack([torch.nn.functional.pad(first, (2, 0)), second])
        mask = torch.ones_like(ids)
        mask[0, :2] = 0
        return states(model.transformer(ids, attention_mask=mask))[0, 2:]


def generated(use_cache: bool | None) -> torch.Tensor:
    model = make_model("mpt")
    ends = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    given: dict[str, Any] = {}
    if use_cache is not None:
        given = {CACHE: na.GrowingCache(), "use_cache": use_cache}
    with na.patch(model):
        tokens: torch.Tensor = model.generate(IDS, **ends, **given)
        return tokens


Thunk = Callable[[], Any]
DYNAMIC = na.DynamicNTK(2.0, 8)

#: What is refused, a part of the advice, and a call that obeys it with what it must give.
ADVICE: list[tuple[Thunk, str, Thunk]] = [
    (
        lambda: patched(make_model("bloom"), DYNAMIC, attention="traceable"),
        "use a scaling without lengths such as NTK",
        lambda: close(
            patched(make_model("bloom"), na.NTK(4.0), attention="traceable"),
            patched(make_model("bloom"), na.NTK(4.0), attention="eager"),
        ),
    ),
    (
        lambda: patched(make_model("mpt"), window=5, attention="traceable"),
        "use attention='fused'",
        lambda: close(
            patched(make_model("mpt"), window=5),
            patched(make_model("mpt"), window=5, attention="eager"),
        ),
    ),
    (
        lambda: traced("fused"),
        "use patch(model, method, attention='traceable')",
        lambda: close(traced("traceable"), patched(make_model("bloom"), na.NTK(4.0))),
    ),
    (
        lambda: shortened(na.WindowCache(5)),
        "use GrowingCache where tokens are taken back",
        lambda: close(shortened(na.GrowingCache()), patched(make_model("bloom"), window=5)[:, -1]),
    ),
    (
        lambda: other_texts(na.GrowingCache()),
        "take a new cache for other texts",
        lambda: close(
            logits(make_model("bloom"), IDS[:1], **{CACHE: na.GrowingCache()}),
            logits(make_model("bloom"), IDS[:1]),
        ),
    ),
    (
        in_memory,
        "use torch.no_grad()",
        # entries of 8 bits, at logits up to 20
        lambda: bool((in_memory(grad=False) - in_memory(None)).abs().max() < 0.5),
    ),
    (
        lambda: of_replaced_layer(again=False),
        "patch again after replacing layers",
        lambda: close(of_replaced_layer(again=True), patched(make_model("bloom"), na.NTK(4.0))),
    ),
    (
        lambda: texts(one_a_row=False),
        "a patched model reads one text a row",
        lambda: close(
            texts(one_a_row=True)[None], states(make_model("bloom").transformer(IDS[:1, :4]))
        ),
    ),
    (
        lambda: generated(use_cache=False),
        "generate(..., use_cache=True)",
        lambda: bool((generated(use_cache=True) == generated(None)).all()),
    ),
    (
        lambda: na.patch((make_model("bloom"), "tokenizer")),  # type: ignore[arg-type]
        "pass its first item",
        lambda: bool(na.patch((make_model("bloom"), "tokenizer")[0])),
    ),
    (
        lambda: na.patch(transformers.BloomForCausalLM),  # type: ignore[arg-type]
        "pass a model, an instance of it",
        lambda: bool(na.patch(make_model("bloom"))),
    ),
]


@pytest.mark.parametrize(("refused", "advice", "obeyed"), ADVICE, ids=[x[1] for x in ADVICE])
def test_advice_that_is_obeyed_is_right(refused: Thunk, advice: str, obeyed: Thunk) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError)) as error:
        refused()
    assert advice in str(error.value)
    assert obeyed()

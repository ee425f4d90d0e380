"""Arguments of patched models that must agree: each pair disagrees by one, at both ends.

The outcome is what the stock model computes ("stock"), what the same call computes with arguments
that agree ("right", by a second call), or an error that names the argument; never just what the
shapes allow.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional as F

import ntk_alibi as na
from model_runs import LOGITS
from ntk_alibi.integrations.arguments import CACHE
from table_families import UMT5_NEEDS, shared_model

ROWS, TOKENS, DECODED, ROOM = 2, 10, 7, 14
IDS = torch.arange(ROWS * TOKENS).reshape(ROWS, TOKENS) % 17 + 3
STEP, DECODER_IDS = IDS[:, :1], IDS[:, :DECODED].flip(1)
PADDED = torch.ones((ROWS, TOKENS), dtype=torch.long)
PADDED[0, :3] = 0
SEEN = F.pad(PADDED, (0, 1), value=1)  # of a step after the prompt

DECODERS = ("bloom", "falcon", "mpt")
ENCODERS = ("t5, encoder", "mpnet")
SHAPE = "attention_mask must have shape"


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.long)


def pairs(queries: int, keys: int, columns: int | None = None) -> torch.Tensor:
    """Return a causal mask of the last queries, (1, 1, queries, columns or keys)."""
    columns = keys if columns is None else columns
    return (torch.arange(keys - queries, keys)[:, None] >= torch.arange(columns))[None, None]


@dataclass
class Run:
    """Calls of a model, patched or not."""

    model: Any

    def __call__(self, ids: Any = IDS, mask: Any = None, cache: Any = None, **given: Any) -> Any:
        if cache is not None:
            given |= {CACHE: cache, "use_cache": True}
        return self.model(ids, attention_mask=mask, **given)[0]

    def after(self, cache: Any) -> Any:
        """Return a cache that holds the padded prompt."""
        self(IDS, PADDED, cache)
        return cache

    def dynamic(self) -> Any:
        return self.after(transformers.DynamicCache())

    def growing(self) -> Any:
        return self.after(na.GrowingCache(8))

    def static(self) -> Any:
        return self.after(transformers.StaticCache(self.model.config, max_cache_len=ROOM))

    def cut(self, *layers: int) -> Any:
        """Return a cache in which layers have lost their first tokens."""
        cache = self.dynamic()
        for number in layers:
            layer = cache.layers[number]
            layer.keys, layer.values = layer.keys[:, :, -6:], layer.values[:, :, -6:]
        return cache

    def decode(self, ids: Any = DECODER_IDS, mask: Any = None, of: Any = None, **given: Any) -> Any:
        """Decode an encoder's output, of which `of` is the mask."""
        rows = given.pop("rows", ROWS)
        beside = {"encoder_outputs": self.model.encoder(IDS[:rows]), "attention_mask": of}
        given = {"use_cache": False, **given}
        return self.model(decoder_input_ids=ids, decoder_attention_mask=mask, **beside, **given)[0]

    def decoded(self) -> dict[str, Any]:
        """Return the arguments of a step after the first tokens of a decoder."""
        caches = transformers.DynamicCache(), transformers.DynamicCache()
        given = {CACHE: transformers.EncoderDecoderCache(*caches), "use_cache": True}
        self.decode(**given)
        return given


OF_DECODERS: dict[str, tuple[Callable[[Run], Any], Any]] = {
    # Mask and ids.
    "mask, 1 more at the left": (lambda run: run(IDS, F.pad(PADDED, (1, 0))), SHAPE),
    "mask, 1 more at the right": (lambda run: run(IDS, F.pad(PADDED, (0, 1), value=1)), SHAPE),
    "mask, 1 less": (lambda run: run(IDS, PADDED[:, 1:]), SHAPE),
    "mask, 1 less, no cache": (lambda run: run(IDS, PADDED[:, 1:], use_cache=False), SHAPE),
    "mask of 1 column": (lambda run: run(IDS, ones(ROWS, 1)), SHAPE),
    "mask of 1 row": (lambda run: run(IDS, PADDED[:1]), SHAPE),
    "mask of 1 axis": (lambda run: run(IDS, PADDED[0]), SHAPE),
    "mask of 3 axes": (lambda run: run(IDS, PADDED[:, None]), SHAPE),
    "generate, cut ids": (
        lambda run: run.model.generate(IDS[:, 1:], attention_mask=PADDED, max_new_tokens=2), SHAPE
    ),
    # Mask and cache.
    "step, mask 1 more": (lambda run: run(STEP, F.pad(SEEN, (1, 0)), run.dynamic()), SHAPE),
    "step, mask 1 less": (lambda run: run(STEP, SEEN[:, 1:], run.dynamic()), SHAPE),
    "step, mask of the step": (lambda run: run(STEP, ones(ROWS, 1), run.dynamic()), SHAPE),
    "step, mask as long": (lambda run: run(STEP, SEEN, run.dynamic()), "stock"),
    "step, growing, 1 more": (lambda run: run(STEP, F.pad(SEEN, (1, 0)), run.growing()), SHAPE),
    "cut cache, mask as before": (lambda run: run(STEP, SEEN, run.cut(0, 1)), SHAPE),
    "cut cache, cut mask": (
        lambda run: run(STEP, SEEN[:, -7:], run.cut(0, 1)), "stock"
    ),
    "first layer's cache is cut": (lambda run: run(STEP, None, run.cut(0)), "must hold the 7 tok"),
    "second layer's cache is cut": (
        lambda run: run(STEP, None, run.cut(1)), "must hold the 11 tokens"
    ),
    "static, mask as long": (
        lambda run: run(STEP, SEEN, run.static()), lambda run: run(STEP, SEEN, run.dynamic())
    ),
    "static, mask of its capacity": (
        lambda run: run(STEP, F.pad(SEEN, (0, ROOM - TOKENS - 1), value=1), run.static()),
        lambda run: run(STEP, SEEN, run.dynamic()),
    ),
    "static, mask 1 more": (
        lambda run: run(STEP, F.pad(SEEN, (0, ROOM - TOKENS)), run.static()),
        rf"{SHAPE} .* = \(2, 11\),.* or up to 14 keys",
    ),
    "static, mask 1 less": (lambda run: run(STEP, SEEN[:, 1:], run.static()), SHAPE),
    "window, mask 1 more": (
        lambda run: run(STEP, F.pad(SEEN, (1, 0)), run.after(na.WindowCache(5))), SHAPE
    ),
    "window, mask 1 less": (
        lambda run: run(STEP, SEEN[:, 1:], run.after(na.WindowCache(5))), SHAPE
    ),
    "a cache of 1 row more": (lambda run: run(STEP[:1], None, run.dynamic()), "Sizes of tensors"),
    # Positions and ids: what the stock models read, they read of the mask.
    "positions, 1 more": (lambda run: run(position_ids=torch.arange(TOKENS + 1)[None]), "stock"),
    "positions, 1 less": (lambda run: run(position_ids=torch.arange(TOKENS - 1)[None]), "stock"),
    "positions of 3 rows": (
        lambda run: run(position_ids=torch.arange(TOKENS).repeat(3, 1)), "stock"
    ),
    "labels, 1 less": (lambda run: run(labels=IDS[:, 1:]), "Expected input batch_size"),
}  # fmt: skip
OF_ENCODERS: dict[str, tuple[Callable[[Run], Any], Any]] = {
    "mask, 1 more at the left": (lambda run: run(IDS, F.pad(PADDED, (1, 0))), SHAPE),
    "mask, 1 more at the right": (lambda run: run(IDS, F.pad(PADDED, (0, 1), value=1)), SHAPE),
    "mask, 1 less": (lambda run: run(IDS, PADDED[:, 1:]), SHAPE),
    "mask of 1 row": (lambda run: run(IDS, PADDED[:1]), SHAPE),
    "pairs, 1 column more": (lambda run: run(IDS, pairs(TOKENS, TOKENS, TOKENS + 1)), SHAPE),
    "pairs, 1 query less": (lambda run: run(IDS, pairs(TOKENS - 1, TOKENS)), SHAPE),
}
OF_BOTH: dict[str, tuple[Callable[[Run], Any], Any]] = {
    "encoder's mask, 1 more": (
        lambda run: run.decode(of=F.pad(PADDED, (0, 1))), f"encoder_{SHAPE}"
    ),
    "encoder's mask, 1 less": (lambda run: run.decode(of=PADDED[:, 1:]), f"encoder_{SHAPE}"),
    "encoder's mask of 1 column": (lambda run: run.decode(of=ones(ROWS, 1)), f"encoder_{SHAPE}"),
    "encoder's mask of 1 row": (lambda run: run.decode(of=PADDED[:1]), f"encoder_{SHAPE}"),
    "encoder's output of 1 row": (lambda run: run.decode(rows=1), "tokens of 2 rows"),
    "mask, 1 more": (lambda run: run.decode(mask=ones(ROWS, DECODED + 1)), SHAPE),
    "mask, 1 less, no cache": (lambda run: run.decode(mask=ones(ROWS, DECODED - 1)), SHAPE),
    "mask, 1 less": (lambda run: run.decode(mask=ones(ROWS, DECODED - 1), use_cache=True), "stock"),
    "step, mask 1 more": (
        lambda run: run.decode(STEP, ones(ROWS, DECODED + 2), **run.decoded()), SHAPE
    ),
    "step, mask 1 less": (
        lambda run: run.decode(STEP, ones(ROWS, DECODED), **run.decoded()), "stock"
    ),
    "step, mask of the first token": (
        lambda run: run.decode(STEP, ones(ROWS, 1), **run.decoded()), "stock"
    ),
    "step, encoder's mask 1 more": (
        lambda run: run.decode(STEP, of=F.pad(PADDED, (0, 1)), **run.decoded()), f"encoder_{SHAPE}"
    ),
    "a cache of decoders alone": (
        lambda run: run.decode(**{CACHE: transformers.DynamicCache(), "use_cache": True}),
        "must be an EncoderDecoderCache",
    ),
}  # fmt: skip
TABLES = ((DECODERS, OF_DECODERS), (ENCODERS, OF_ENCODERS), (("t5", "umt5"), OF_BOTH))


#: The form in which transformers makes masks of all pairs has the same sizes, without reading them.
OF_SIZES = ("mask", "step", "generate", "cut", "static, mask")


#: What cases of UMT5 need. Before 5.24 it repeats a mask of one row, and makes one of pairs of
#: another length; two cases begin a cache by a text without padding.
REPEATED = pytest.mark.needs("transformers >= 5.24", "UMT5 of 5.4 makes its masks itself")
AHEAD = pytest.mark.needs(*UMT5_NEEDS)
OF_UMT5 = {
    "encoder's mask of 1 row": REPEATED,
    "step, mask 1 more": REPEATED,
    "step, mask 1 less": AHEAD,
    "step, mask of the first token": AHEAD,
    "encoder's mask of 1 column": pytest.mark.needs(
        "transformers != 5.12.*", "UMT5 drops a mask of ones before any layer gets it"
    ),
}


def rows() -> Iterator[Any]:
    for families, cases in TABLES:
        for family, (name, case) in itertools.product(families, cases.items()):
            marks = OF_UMT5.get(name, ()) if family == "umt5" else ()
            yield pytest.param(family, "fused", *case, id=f"{family} | {name}", marks=marks)
            if family in DECODERS and name.startswith(OF_SIZES):
                yield pytest.param(family, "traceable", *case, id=f"{family}, traceable | {name}")


@torch.no_grad()
@pytest.mark.parametrize(("family", "form", "call", "outcome"), [*rows()])
def test_arguments_that_do_not_agree(
    family: str, form: Any, call: Callable[[Run], Any], outcome: str | Callable[[Run], Any]
) -> None:
    model = copy.deepcopy(shared_model(family))
    stock = call(Run(copy.deepcopy(model))) if outcome == "stock" else None
    window = {"window": 5} if "WindowCache" in call.__code__.co_names else {}
    with na.patch(model, attention=form, **window):
        if stock is not None:
            torch.testing.assert_close(call(Run(model)), stock, **LOGITS)
        elif callable(outcome):
            torch.testing.assert_close(call(Run(model)), outcome(Run(model)), **LOGITS)
        else:
            with pytest.raises((ValueError, RuntimeError), match=outcome):
                call(Run(model))

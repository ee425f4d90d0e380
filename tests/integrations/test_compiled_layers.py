"""torch.compile of whole patched models: one graph, or as many for 12 layers as for 2."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers

import ntk_alibi as na
from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.torch import learned_bias
from small_models import make_model

#: Eleven tokens in two rows, and padding in the second row.
IDS = torch.arange(22).view(2, 11) + 3
MASK = (torch.arange(11) >= torch.tensor([[0], [3]])).long()

pytestmark = [
    # transformers' own GELU of BLOOM, in Dynamo:
    pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning"),
]


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


@pytest.fixture(autouse=True)
def counts() -> Iterator[Warnings]:
    """Count what Dynamo does in a test, which never gives up."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    heard = Warnings()
    logging.getLogger("torch._dynamo").addHandler(heard)
    yield heard
    logging.getLogger("torch._dynamo").removeHandler(heard)
    torch.compiler.reset()
    assert heard.count == 0


def new_graphs() -> int:
    """Return the number of graphs since the last call."""
    count: int = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    torch._dynamo.utils.counters.clear()
    return count


def without_cache(name: str) -> dict[str, Any]:
    return {"use_cache": False} if name in ("bloom", "mpt", "falcon") else {}


def states(model: Any, **given: Any) -> torch.Tensor:
    """Return the states, or logits, of real tokens."""
    mask = given.get("attention_mask", torch.ones_like(IDS))
    found: torch.Tensor = model(IDS, **given)[0][mask != 0]
    return found


one_graph = pytest.mark.needs("torch >= 2.12", "Dynamo of older ones reads no arrays of a bias")
names = pytest.mark.parametrize("name", ["bloom", "mpt", "falcon", "T5", "MPNet"])


@one_graph
@pytest.mark.parametrize(
    "name",
    [
        "bloom",
        "mpt",
        pytest.param(
            "falcon",
            marks=pytest.mark.needs("transformers >= 5.18", "Dynamo cannot trace how it masks"),
        ),
        "T5",
        pytest.param(
            "MPNet", marks=pytest.mark.needs("transformers >= 5.12", "it makes its mask itself")
        ),
    ],
)
def test_without_a_cache_and_gradients_a_model_is_one_graph(name: str) -> None:
    model, given = inner(name, 12), without_cache(name)
    with torch.no_grad(), na.patch(model):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        for mask in ({}, {"attention_mask": MASK}, {"attention_mask": MASK.flip(1)}):
            expected = states(model, **mask, **given)
            torch.testing.assert_close(states(compiled, **mask, **given), expected)
        assert new_graphs() == 2  # without and with a mask


@one_graph
@torch.no_grad()
@pytest.mark.parametrize("name", ["mpt", pytest.param("bloom", marks=pytest.mark.slow)])
def test_a_graph_follows_the_patches_of_its_model(name: str) -> None:
    model, given = inner(name, 2), without_cache(name)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    stock = states(compiled, **given)
    options: list[dict[str, Any]] = [
        {"method": na.NTK(4.0)},
        {"method": na.DynamicNTK(2.0, train_length=4)},
        {"method": na.DynamicNTK(2.0, train_length=4), "window": 6},
        {"window": 4, "sink": 1, "log_n": 8},
        {"method": learned_bias.LearnedKerpleLog(8)},
    ]
    for patch in options:
        torch.compiler.reset()
        with na.patch(model, **patch), na.patch(model, na.NTK(2.0)):
            assert torch.equal(states(compiled, **given), states(model, **given))
            twin = copy.deepcopy(model)
        with na.patch(model, **patch):
            assert torch.equal(states(compiled, **given), states(model, **given))
        assert torch.equal(states(compiled, **given), stock)
        whole = torch.compile(twin, backend="eager", fullgraph=True)
        assert torch.equal(states(whole, **given), states(twin, **given))


def padded(length: int) -> dict[str, Any]:
    """Return two texts of a length, and padding in the second one."""
    ids = torch.randint(3, 60, (2, length), generator=torch.Generator().manual_seed(length))
    return {"input_ids": ids, "attention_mask": (torch.arange(length) >= IDS[:, :1] % 3).long()}


PATCHES: dict[str, dict[str, Any]] = {
    "NTK": {"method": na.NTK(2.0)},
    "a window and sinks": {"window": 6, "sink": 2, "log_n": 8},
    "dynamic": {"method": na.DynamicNTK(2.0, 16)},
}


@one_graph
@pytest.mark.needs("transformers >= 5.18", "Dynamo cannot trace how Falcon masks")
@pytest.mark.parametrize("patch", PATCHES)
@pytest.mark.parametrize(
    "name", ["bloom", *(pytest.param(x, marks=pytest.mark.slow) for x in ("mpt", "falcon"))]
)
def test_a_decoder_trains_in_two_graphs_at_every_length(name: str, patch: str) -> None:
    model = inner(name, 2).train()
    with na.patch(model, **PATCHES[patch]):
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        for length in (11, 20, 9, 31, 40, 12, 25, 26, 33, 14):
            given = padded(length)
            real = given["attention_mask"] != 0
            found, expected = (
                torch.autograd.grad(
                    x(**given, use_cache=False)[0][real].square().sum(), [*model.parameters()]
                )
                for x in (compiled, model)
            )
            greatest = max(float(x.abs().max()) for x in expected)
            for x, y in zip(found, expected, strict=True):
                torch.testing.assert_close(x, y, rtol=0, atol=1e-6 * greatest)
    assert new_graphs() <= 2


def with_dropout(name: str) -> Any:
    """Return a model of learned tables that drops weights."""
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_heads": 4, "num_layers": 2}
    if name == "MPNet":
        return inner(name, 2)
    if name == "UMT5":
        return transformers.UMT5EncoderModel(transformers.UMT5Config(vocab_size=64, **sizes))
    config = transformers.T5Config(vocab_size=64, decoder_start_token_id=0, **sizes)
    return transformers.T5ForConditionalGeneration(config)


@one_graph
@pytest.mark.needs("transformers >= 5.12", "MPNet makes its mask itself")
@pytest.mark.parametrize(
    "name", ["T5", *(pytest.param(x, marks=pytest.mark.slow) for x in ("UMT5", "MPNet"))]
)
def test_tables_train_in_two_graphs_with_dropout(name: str) -> None:
    model = with_dropout(name).train()
    parameters = dict(model.named_parameters())
    with na.patch(model):
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        for length in (11, 20, 9, 31, 40, 12):
            given = padded(length)
            if name == "T5":
                given["labels"] = given["input_ids"][:, :5].contiguous()
            found, expected = (gradients_of(x, given, parameters) for x in (compiled, model))
            tables = [key for key in parameters if "relative_attention_bias" in key]
            assert tables
            for some in (tables, parameters):
                greatest = max(float(expected[key].abs().max()) for key in some)
                for key in some:
                    torch.testing.assert_close(
                        found[key], expected[key], rtol=0, atol=1e-5 * greatest
                    )
    assert new_graphs() <= 2


def gradients_of(
    run: Any, given: dict[str, Any], parameters: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return a model's gradients, with the dropout of one seed."""
    torch.manual_seed(1)
    output = run(**given)
    real = given["attention_mask"] != 0
    loss = output.loss if "labels" in given else output[0][real].square().sum()
    gradients = torch.autograd.grad(loss, [*parameters.values()], materialize_grads=True)
    return dict(zip(parameters, gradients, strict=True))


@one_graph
@pytest.mark.needs("transformers >= 5.18", "Dynamo cannot trace how Falcon masks")
@torch.no_grad()
@pytest.mark.parametrize("kind", ["growing", "static"])
@pytest.mark.parametrize(
    "name", ["bloom", *(pytest.param(x, marks=pytest.mark.slow) for x in ("mpt", "falcon"))]
)
def test_steps_of_a_decoder_share_graphs(name: str, kind: str) -> None:
    """A growing cache needs three: before, at its first length, and at all others."""
    model, given, length = inner(name, 2), padded(24), 9
    with na.patch(model, na.NTK(2.0), window=7, sink=1):
        expected = model(**given, use_cache=False)[0]
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        cache: Any = transformers.DynamicCache(config=model.config)
        if kind == "static":
            cache = transformers.StaticCache(config=model.config, max_cache_len=32)
        for begin, end in zip((0, *range(length, 23)), range(length, 24), strict=True):
            mask, ids = given["attention_mask"][:, :end], given["input_ids"][:, begin:end]
            states = compiled(ids, attention_mask=mask, use_cache=True, **{CACHE: cache})[0]
            real = mask[:, begin:] != 0
            torch.testing.assert_close(states[real], expected[:, begin:end][real])
    assert new_graphs() <= (3 if kind == "growing" else 2)


@one_graph
def test_a_graph_refuses_a_backward_pass_outside_of_its_patch() -> None:
    """It computes weights again, which another scaling would change in silence."""
    model, message = inner("mpt", 2), "the patch must stay as it is until the backward pass"
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for changes in (lambda: na.patch(model, na.NTK(8.0)), lambda: na.unpatch(model)):
        na.patch(model, na.NTK(2.0))
        loss, other = (states(compiled, use_cache=False).square().sum() for _ in range(2))
        loss.backward()
        changes()
        with pytest.raises(ValueError, match=message):
            other.backward()


@one_graph
@torch.no_grad()
def test_a_graph_refuses_a_mask_that_does_not_suit_its_cache() -> None:
    model, given = inner("bloom", 2), padded(12)
    with na.patch(model, na.NTK(2.0)):
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        cache = transformers.StaticCache(config=model.config, max_cache_len=16)
        compiled(**given, use_cache=True, **{CACHE: cache})
        step = given["input_ids"][:, :1]
        for columns in (12, 17):
            mask = torch.ones(2, columns, dtype=torch.long)
            with pytest.raises(Exception, match="attention_mask must have"):
                compiled(step, attention_mask=mask, use_cache=True, **{CACHE: cache})


@one_graph
@torch.no_grad()
def test_generate_with_a_compiled_forward() -> None:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_heads": 4, "num_layers": 2}
    encoder_and_decoder = transformers.T5Config(vocab_size=64, decoder_start_token_id=0, **sizes)
    ends: dict[str, Any] = {
        "max_new_tokens": 6,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    for model in (
        make_model("bloom", layers=2),
        transformers.T5ForConditionalGeneration(encoder_and_decoder).eval(),
    ):
        with na.patch(model, *([na.NTK(2.0)] if model.config.model_type == "bloom" else [])):
            expected = model.generate(**padded(9), **ends)
            model.forward = torch.compile(model.forward, backend="aot_eager", fullgraph=True)
            for cache in ("dynamic", "static"):
                torch.compiler.reset()
                found = model.generate(**padded(9), cache_implementation=cache, **ends)
                assert torch.equal(found, expected)
            del model.forward


@one_graph
@torch.no_grad()
def test_a_graph_of_encoder_and_decoder() -> None:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_heads": 4, "decoder_start_token_id": 0}
    config = transformers.T5Config(vocab_size=64, num_layers=2, **sizes)
    model = transformers.T5ForConditionalGeneration(config).eval()
    given = {"attention_mask": MASK, "decoder_input_ids": IDS[:, :4], "use_cache": False}
    with na.patch(model):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(IDS, **given).logits, model(IDS, **given).logits)


#: What falls out of a whole graph, as docs/versions.md lists it: of `patch`, the call, gradients.
FALLS_OUT: dict[str, tuple[Any, Any, bool]] = {
    "attention weights": (lambda _: {}, lambda _: {"output_attentions": True}, False),
    "a bias that is trained": (
        lambda model: {"method": learned_bias.LearnedALiBi(model.num_heads)}, lambda _: {}, True
    ),
    "a GrowingCache": (lambda _: {}, lambda _: {CACHE: na.GrowingCache(16)}, False),
    "a WindowCache": (lambda _: {"window": 8}, lambda _: {CACHE: na.WindowCache(8)}, False),
    "a static cache with gradients": (
        lambda _: {},
        lambda model: {CACHE: transformers.StaticCache(model.config, max_cache_len=16)},
        True,
    ),
    "eager attention of BLOOM": (lambda _: {"attention": "eager"}, lambda _: {}, False),
}  # fmt: skip


@one_graph
@pytest.mark.parametrize("what", FALLS_OUT)
def test_what_falls_out_of_a_whole_graph(what: str) -> None:
    options, arguments, recorded = FALLS_OUT[what]
    model = inner("bloom", 1)
    with torch.set_grad_enabled(recorded), na.patch(model, **options(model)):
        whole = torch.compile(model, backend="eager", fullgraph=True)
        with pytest.raises(torch._dynamo.exc.Unsupported, match="attention must be 'traceable'"):
            whole(IDS, attention_mask=MASK, **arguments(model))


#: Calls of which parts run outside of graphs, which each layer enters anew.
IN_PARTS: dict[str, tuple[dict[str, Any], Any]] = {
    "weights": ({}, lambda _: {"output_attentions": True}),
    "eager": ({"attention": "eager"}, lambda _: {}),
    "a GrowingCache": ({}, lambda _: {CACHE: na.GrowingCache(16), "use_cache": True}),
    "a WindowCache": ({"window": 8}, lambda _: {CACHE: na.WindowCache(8), "use_cache": True}),
    "weights, a static cache": ({}, lambda model: {
        CACHE: transformers.StaticCache(model.config, max_cache_len=16), "output_attentions": True
    }),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "what"),
    [
        *itertools.product(("bloom", "mpt", "falcon"), IN_PARTS),
        ("T5", "weights"),
        ("MPNet", "weights"),
    ],
)
def test_layers_that_run_outside_of_graphs_stay_apart(name: str, what: str) -> None:
    """What Dynamo compiles for one layer reads the others anew."""
    options, arguments = IN_PARTS[what]
    model = inner(name, 3)
    for parameter in model.parameters():
        parameter.mul_(5 if parameter.ndim > 1 else 1)  # layers that differ
    with na.patch(model, **options):
        expected = model(IDS, **arguments(model))[0]
        found = torch.compile(model, backend="eager")(IDS, **arguments(model))[0]
    torch.testing.assert_close(found, expected)


def graphs_of_steps(name: str, layers: int, options: dict[str, Any]) -> int:
    """Return the number of graphs of a prompt with padding and a cache, and of what follows it."""
    model = inner(name, layers)

    def steps(run: Any) -> list[torch.Tensor]:
        cache = {CACHE: transformers.DynamicCache()}
        parts = ((0, 7), (7, 8), (8, 9), (9, 11))
        return [run(IDS[:, a:b], attention_mask=MASK[:, :b], **cache)[0][:, -1] for a, b in parts]

    with torch.no_grad(), na.patch(model, **options):
        expected = steps(model)
        found = steps(torch.compile(model, backend="eager"))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0.0)
    return new_graphs()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon"])
@pytest.mark.parametrize("options", [{}, {"attention": "eager"}], ids=str)
def test_with_a_cache_more_layers_need_no_more_graphs(name: str, options: dict[str, Any]) -> None:
    few = graphs_of_steps(name, 2, options)
    torch.compiler.reset()
    assert graphs_of_steps(name, 12, options) <= few

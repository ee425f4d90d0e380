"""All model families: patched models against transformers and an independent computation."""

from __future__ import annotations

import copy
import itertools
import sys
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import ntk_alibi as na
from family_models import (
    HEADS,
    LOGITS,
    MAKERS,
    attentions,
    compiled_families,
    families,
    independent_logits,
    make_model,
)
from model_runs import (
    assert_gradients_close,
    drop_weights,
    enable_checkpointing,
    generate,
    generations,
    gradients,
    state_of,
)
from ntk_alibi.integrations import known
from ntk_alibi.integrations.cache_argument import CACHE
from padded_batches import BATCH, LENGTH, MASKS, VOCABULARY, masks, real, run

every_layout = pytest.mark.parametrize("name", MAKERS)


def dynamic(plain: np.ndarray, tokens: int) -> np.ndarray:
    return na.reference.ntk_slopes(plain, na.reference.dynamic_factor(2.0, tokens, 16))


def dynamic_per_query(plain: np.ndarray, tokens: int) -> np.ndarray:
    return np.array([dynamic(plain, n + 1) for n in range(tokens)]).T


#: Scalings, and what `independent_logits` takes for them.
SCALINGS: dict[Any, dict[str, Any]] = {
    None: {},
    na.Interpolation(2.0): {"slopes": lambda x, _: na.reference.interpolated_slopes(x, 2.0)},
    na.NTK(4.0): {"slopes": lambda x, _: na.reference.ntk_slopes(x, 4.0)},
    na.DynamicNTK(2.0, 16): {"slopes": dynamic},
    na.DynamicNTK(2.0, 16, per="query"): {"slopes": dynamic_per_query},
    **{na.Knee(*x): {"knee": x} for x in ((6, 5.0), (0, 3.0), (11, float("inf")), (9, 0.5))},
}


@every_layout
@attentions
@masks
def test_no_scaling_equals_transformers(
    models: dict, ids: torch.Tensor, name: str, attention: Any, mask: Any
) -> None:
    model, kept = models[name], real(mask)
    stock = run(model, ids, mask)
    with na.patch(model, attention=attention):
        torch.testing.assert_close(run(model, ids, mask)[kept], stock[kept], **LOGITS)
    assert torch.equal(run(model, ids, mask), stock)


@pytest.mark.parametrize(
    ("name", "scaling"), [*itertools.product(("bloom", "mpt", "falcon"), SCALINGS)], ids=repr
)
@attentions
@pytest.mark.parametrize("mask", ["none", "left", "holes"])
@pytest.mark.parametrize("heads", [8, 12])
def test_logits_equal_an_independent_computation(
    ids: torch.Tensor, name: str, attention: Any, mask: Any, scaling: Any, heads: int
) -> None:
    model, mask = make_model(name, heads), MASKS[mask]
    kept, plain = real(mask), na.reference.alibi_slopes(heads)
    expected = independent_logits(model, ids, mask, **{"slopes": plain, **SCALINGS[scaling]})
    with na.patch(model, scaling, attention=attention):
        logits = run(model, ids, mask)
    torch.testing.assert_close(logits[kept].double(), expected[kept], **LOGITS)
    if scaling is not None:
        assert (logits - run(model, ids, mask))[kept].abs().max() > 1e-3


def test_texts_up_to_the_knee_do_not_change(models: dict, ids: torch.Tensor) -> None:
    for model in models.values():
        with na.patch(model):
            plain = run(model, ids)
        with na.patch(model, na.Knee(LENGTH - 1, 28.0)):
            torch.testing.assert_close(run(model, ids), plain, **LOGITS)


@every_layout
@attentions
@pytest.mark.parametrize(
    "scaling",
    [na.DynamicNTK(2.0, 16), na.DynamicNTK(2.0, 16, per="query"), na.Knee(6, 5.0)],
    ids=repr,
)
def test_a_padded_row_equals_the_row_alone(
    models: dict, ids: torch.Tensor, name: str, scaling: Any, attention: Any
) -> None:
    mask = MASKS["left"]
    with na.patch(models[name], scaling, attention=attention):
        batch = run(models[name], ids, mask)
        for b, kept in enumerate(mask.bool()):
            alone = run(models[name], ids[b][kept][None])[0]
            torch.testing.assert_close(batch[b][kept], alone, **LOGITS)


@attentions
@generations({"prompt_lookup_num_tokens": 3})
def test_generate(
    models: dict, ids: torch.Tensor, name: str, mask: Any, options: Any, attention: Any
) -> None:
    model, beams = models[name], options.get("num_beams", 1)
    if "prompt_lookup_num_tokens" in options:  # transformers allows one row only
        ids, mask = ids[:1], None if mask is None else mask[:1]
    # Stock Falcon cannot read the mask that generate() makes for a static cache.
    stock = generate(model, ids, mask, num_beams=beams)
    with na.patch(model, attention=attention):
        assert torch.equal(generate(model, ids, mask, **options), stock)
    for scaling in (na.DynamicNTK(4.0, 8, per="query"), na.Knee(6, 8.0)):
        with na.patch(model, scaling, attention=attention):
            tokens = generate(model, ids, mask, **options)
            full = generate(model, ids, mask, use_cache=False, num_beams=beams)
        assert torch.equal(tokens, full)


@families
@pytest.mark.parametrize(
    "scaling", [na.NTK(4.0), na.DynamicNTK(2.0, 16, per="query"), na.Knee(6, 5.0)], ids=repr
)
def test_gradients_and_gradient_checkpointing(ids: torch.Tensor, name: str, scaling: Any) -> None:
    mask = MASKS["right"]
    labels = ids.masked_fill(~real(mask), -100)  # the output of padding is undefined

    def of(attention: str, checkpointing: bool) -> list[torch.Tensor]:
        patch = {"scaling": scaling, "attention": attention}
        model = make_model(name)
        return gradients(model, ids, mask, labels, checkpointing=checkpointing, **patch)

    expected = of("eager", False)
    others = [("eager", True), ("fused", False), ("fused", True)]
    if not isinstance(scaling, na.DynamicNTK):  # which the traceable form refuses
        others += [("traceable", False), ("traceable", True)]
    for attention, checkpointing in others:
        assert_gradients_close(of(attention, checkpointing), expected)


@families
@pytest.mark.parametrize(
    ("attention", "message"),
    [("fused", "the patch must stay until the backward pass"), ("traceable", None)],
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
    drop_weights(model)
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
    [{"scaling": na.NTK(2.0)}, {"scaling": na.Knee(64, 8.0)}, {"window": 64, "sink": 4}],
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


@families
def test_dropout_builds_no_matrix_of_all_queries_and_keys(name: str) -> None:
    length = 2048
    model = make_model(name, 1).train()
    drop_weights(model)
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
def test_output_attentions(models: dict, ids: torch.Tensor, name: str, attention: Any) -> None:
    mask = MASKS["left"]
    with torch.no_grad(), na.patch(models[name], na.NTK(4.0), attention=attention):
        outputs = models[name](ids, attention_mask=mask, output_attentions=True)
        logits = run(models[name], ids, mask)
    kept = real(mask)
    torch.testing.assert_close(outputs.logits[kept], logits[kept], **LOGITS)
    assert [weights.shape for weights in outputs.attentions] == [(BATCH, HEADS, LENGTH, LENGTH)] * 3
    seen = (
        kept[:, None, :, None] & kept[:, None, None, :] & torch.ones(LENGTH, LENGTH).tril().bool()
    )
    for weights in outputs.attentions:
        assert (weights * kept[:, None, :, None])[~seen.expand_as(weights)].abs().max() == 0.0
        torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, HEADS, LENGTH))


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


@compiled_families
@pytest.mark.parametrize(
    "options", [{"window": 9, "sink": 3}, pytest.param({}, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled(shallow: dict, ids: torch.Tensor, name: str, options: dict) -> None:
    model, kept = shallow[name], real(MASKS["left"])
    torch.compiler.reset()
    with na.patch(model, na.NTK(4.0), **options):
        compiled = torch.compile(model, backend="eager")
        for mask, rows in ((MASKS["left"], kept), (None, ...)):
            expected = run(model, ids, mask)
            torch.testing.assert_close(run(compiled, ids, mask)[rows], expected[rows], **LOGITS)
    torch.compiler.reset()


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

    for scaling in (na.NTK(4.0), na.Knee(6, 5.0)):
        with torch.no_grad(), na.patch(shallow[name], scaling, attention="eager"):
            check_traces(shallow[name], logits, ids)
    dynamic = na.DynamicNTK(2.0, 16)
    read = "attention_mask must not be a tensor where torch traces"
    with (
        torch.no_grad(),
        na.patch(shallow[name], dynamic, attention="eager"),
        pytest.raises(ValueError, match=read),
    ):
        make_fx(logits)(ids)
    message = "attention must be 'traceable' where torch.export, make_fx or FakeTensorMode trace"
    with torch.no_grad(), na.patch(shallow[name], na.NTK(4.0)):
        with pytest.raises(ValueError, match=message):
            make_fx(logits)(ids)
        with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(ValueError, match=message):
            logits(torch.zeros((1, 7), dtype=torch.long))
        with pytest.raises(ValueError, match=message):
            torch.export.export(shallow[name], (ids,), {"use_cache": False})


@families
@attentions
def test_nothing_is_left_behind(ids: torch.Tensor, name: str, attention: Any) -> None:
    model = make_model(name)
    code, config = vars(sys.modules[type(model).__module__]), model.config.to_dict()
    before, functions, stock = state_of(model), dict(code), run(model, ids)
    with na.patch(model, na.NTK(2.0), attention=attention):
        clone = copy.deepcopy(model)
        with na.patch(model, na.NTK(8.0)):
            run(model, ids)
        patched = run(model, ids)
        assert model.config.to_dict() == config
        assert dict(code) == functions
    assert state_of(model) == before
    assert torch.equal(run(model, ids), stock)
    assert torch.equal(run(clone, ids), patched)
    assert not torch.equal(patched, stock)


@families
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_lora(ids: torch.Tensor, name: str) -> None:
    peft = pytest.importorskip("peft")
    targets = ["Wqkv"] if name == "mpt" else ["query_key_value"]
    config = peft.LoraConfig(target_modules=targets, init_lora_weights=False, task_type="CAUSAL_LM")
    model = peft.get_peft_model(make_model(name), config).eval()
    stock = run(model, ids)
    with na.patch(model):
        torch.testing.assert_close(run(model, ids), stock, **LOGITS)
    assert torch.equal(run(model, ids), stock)


@families
@pytest.mark.parametrize("hooks_first", [False, True])
def test_hooks_of_accelerate(ids: torch.Tensor, name: str, hooks_first: bool) -> None:
    accelerate = pytest.importorskip("accelerate")
    model, names = make_model(name), (".attn", ".self_attention")

    def add_hooks() -> None:
        for part, module in model.named_modules():
            if part.endswith(names):
                hook = accelerate.hooks.AlignDevicesHook("cpu", io_same_device=True)
                accelerate.hooks.add_hook_to_module(module, hook)

    stock = run(model, ids)
    if hooks_first:
        add_hooks()
    with na.patch(model, na.NTK(4.0)):
        patched = run(model, ids)
        if not hooks_first:
            add_hooks()
        assert torch.equal(run(model, ids), patched)
    assert torch.equal(run(model, ids), stock)
    assert not torch.equal(patched, stock)


def test_a_family_of_a_subclass_precedes_that_of_its_base() -> None:
    """`patch` takes the first family that fits."""
    for before, after in itertools.combinations(known.of_transformers(), 2):
        assert not issubclass(after.model, before.model)

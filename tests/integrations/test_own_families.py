"""Families that others write: found, patched, compared with the model's own layer, refused."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.utils.checkpoint import checkpoint

import ntk_alibi as na
from ntk_alibi.integrations import register
from ntk_alibi.integrations.family import REGISTERED
from ntk_alibi.integrations.forward_pass import Pass
from small_models import ToyModel, toy_batch, toy_family, toy_model

#: Float32 sums of 50 terms through two layers, at outputs of about 1.
CLOSE = {"atol": 5e-6, "rtol": 0.0}

both = pytest.mark.parametrize("causal", [False, True])


def run(model: Any, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    with torch.no_grad():
        output: torch.Tensor = model(ids, mask)
    return output if mask is None else output[mask != 0]


@pytest.mark.needs("torch >= 2.12", "Dynamo of older ones reads no arrays of a bias")
def test_a_compiled_model_is_one_graph() -> None:
    model, (ids, mask) = toy_model(), toy_batch()
    with na.patch(model, na.NTK(4.0), family=toy_family()):
        patched = run(model, ids, mask)
        assert torch.equal(run(torch.compile(model, backend="eager"), ids, mask), patched)
        torch.compiler.reset()
        whole = torch.compile(model, backend="eager", fullgraph=True)
        assert torch.equal(run(whole, ids, mask), patched)
        found, expected = (
            torch.autograd.grad(x(ids, mask)[mask != 0].square().sum(), [*model.parameters()])
            for x in (whole, model)
        )
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x, y)
    torch.compiler.reset()


def test_masks_of_several_forms_are_read_and_others_refused() -> None:
    model, (ids, mask) = toy_model(), toy_batch()
    wanted = run(model, ids, mask)
    added = torch.zeros(2, 1, 1, ids.shape[1]).masked_fill(mask[:, None, None] == 0, -1e4)

    def by(given: Any) -> torch.Tensor:
        with torch.no_grad():
            output: torch.Tensor = model(ids, given)
        return output[mask != 0]

    with na.patch(model, family=toy_family()):
        pairs = added.expand(2, 1, 37, 37)
        for given in (mask, mask.bool(), mask.float(), added, added.half(), added == 0, pairs):
            torch.testing.assert_close(by(given), wanted, **CLOSE)
        for wrong in (mask[:, 1:], added + 0.5):
            with pytest.raises(ValueError, match=r"^mask must [^\n]*got"):
                by(wrong)
    torch.testing.assert_close(run(model, ids, mask), wanted)


def test_masks_and_their_passes_are_freed() -> None:
    model, (ids, mask) = toy_model(), toy_batch()
    with na.patch(model, family=toy_family()), torch.no_grad():
        run(model, ids, given := mask.clone())
        gone = weakref.ref(given)
        del given
        gc.collect()
        assert gone() is None
        kept = [x for x in gc.get_objects() if type(x) is Pass]
        run(model, ids, mask)
        assert len([x for x in gc.get_objects() if type(x) is Pass]) == len(kept) + 1


def test_a_mask_that_changed_in_place_is_read_again_and_so_is_a_patch() -> None:
    model, (ids, mask) = toy_model(), toy_batch()
    for scaling in (None, na.NTK(4.0)):
        with na.patch(model, scaling, family=toy_family()):
            first = run(model, ids, mask)
            mask[1] = 1 - mask[1]
            again = run(model, ids, mask)
            assert torch.equal(again, run(model, ids, mask.clone()))
            assert first.shape != again.shape


@pytest.mark.parametrize("kind", ["closure", "default", "partial"])
def test_a_family_replaces_methods_by_any_callable(kind: str) -> None:
    model, (ids, mask) = toy_model(), toy_batch()
    seen: list[Any] = []

    def closure(owner: Any, hidden: torch.Tensor) -> torch.Tensor:
        seen.append(owner)
        return nn.functional.embedding(hidden, owner.weight)

    def default(owner: Any, hidden: torch.Tensor, seen: Any = seen) -> torch.Tensor:
        seen.append(owner)
        return nn.functional.embedding(hidden, owner.weight)

    replacement = {"closure": closure, "default": default, "partial": partial(closure)}[kind]

    def replacements(model: Any) -> list[Any]:
        return [(model.embed, "forward", replacement), (model.embed, "other", replacement)]

    wanted = run(model, ids, mask)
    with na.patch(model, family=toy_family(replacements=replacements)):
        seen.clear()
        torch.testing.assert_close(run(model, ids, mask), wanted, **CLOSE)
        model.embed.other(ids)  # a method that its class lacks
    assert seen == [model.embed] * 2
    assert not hasattr(model.embed, "other")


def test_a_layer_whose_code_changed_is_refused_by_its_numbers() -> None:
    """Never wrong in silence, and a half patched model never remains."""

    class Other(type(toy_model().attentions[0])):  # type: ignore[misc]
        def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return super().forward(hidden * 1.01, attention_mask)

    model, (ids, mask) = toy_model(), toy_batch()
    for layer in model.attentions:
        layer.__class__ = Other
    stock, before = run(model, ids, mask), dict(vars(model))
    model.train()
    with pytest.raises(RuntimeError, match=r"Other.forward .* must compute what .* differ by \d"):
        na.patch(model, family=toy_family())
    assert vars(model).keys() == before.keys()
    assert all(x.training for x in model.modules())
    assert torch.equal(run(model.eval(), ids, mask), stock)
    assert na.patched(model) == []


def test_a_patch_that_fails_halfway_leaves_the_model_as_it_was() -> None:
    model, (ids, mask) = toy_model(), toy_batch()
    stock, before = run(model, ids, mask), dict(vars(model))

    def replacements(model: Any) -> list[Any]:
        return [(model.embed, "weight", 2.0)]

    with pytest.raises(TypeError, match="cannot assign"):
        na.patch(model, family=toy_family(replacements=replacements))
    assert vars(model).keys() == before.keys()
    assert torch.equal(run(model, ids, mask), stock)

    def wrong(attend: Any, layer: Any, hidden: torch.Tensor, attention_mask: Any) -> Any:
        query, key, value = layer.heads(hidden)
        return attend(query[:, :3], key, value)

    with pytest.raises(RuntimeError, match=r"the patch raised .*query must have the 6 heads"):
        na.patch(model, family=toy_family(forward=wrong))
    assert vars(model).keys() == before.keys()
    assert torch.equal(run(model, ids, mask), stock)


def test_a_family_can_say_the_training_length() -> None:
    model, (ids, mask) = toy_model(), toy_batch()
    family = toy_family(train_length=lambda _: 16)
    with na.patch(model, na.DynamicNTK(1.0), family=family) as patch:
        assert patch.scaling.train_length == 16
        run(model, ids, mask)
    with pytest.warns(UserWarning, match="the model's config has 16"):
        na.patch(model, na.DynamicNTK(1.0, 512), family=family).undo()


def test_register_lets_patch_find_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTERED, "Toy", toy_family())  # and takes it back
    del REGISTERED["Toy"]
    model = toy_model()
    message = r"known family \(.*BLOOM, .*got ToyModel.*help\(ntk_alibi.integrations.register"
    with pytest.raises(ValueError, match=message):
        na.patch(model)
    family = toy_family()
    register(family)
    assert pickle.loads(pickle.dumps(family)) is family
    with na.patch(nn.Sequential(nn.Identity(), model), na.NTK(4.0)) as patch:
        assert "patch of Toy" in repr(patch)
        assert [type(x) for x in na.patched(model)] == [type(patch)]
    for name in ("Toy", "bloom"):
        with pytest.raises(ValueError, match=f"name of a family must be .* got '{name}'"):
            register(toy_family(name=name))
    with pytest.raises(
        TypeError, match=r"family must be an ntk_alibi.integrations.Family, got str"
    ):
        register("Toy")  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"family must be an ntk_alibi.integrations.Family, got dict"
    ):
        na.patch(model, family={})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must hold ALiBi attention of the family Toy, got Linear"):
        na.patch(nn.Linear(1, 1), family=family)


def test_one_pass_serves_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    from ntk_alibi.integrations import pass_kinds

    passes: list[Any] = []
    stock = pass_kinds.problem_of_rows

    def problem_of(*arguments: Any, **options: Any) -> Any:
        passes.append(arguments)
        return stock(*arguments, **options)

    monkeypatch.setattr(pass_kinds, "problem_of_rows", problem_of)
    torch.manual_seed(0)
    model, (ids, mask) = ToyModel(layers=4), toy_batch()
    with na.patch(model, family=toy_family()):
        passes.clear()
        run(model, ids, mask)
        assert len(passes) == 1
        run(model, ids, mask)
        assert len(passes) == 2


def test_a_family_works_with_torch_alone() -> None:
    """No transformers in the process, as where it is not installed."""
    code = """
import sys, importlib.metadata as metadata
sys.path.insert(0, "tests/shared")
sys.modules["transformers"] = None
stock = metadata.version
def version(name):
    if name == "transformers":
        raise metadata.PackageNotFoundError(name)
    return stock(name)
metadata.version = version
import ntk_alibi as na
from small_models import toy_batch, toy_family, toy_model
model, (ids, mask) = toy_model(), toy_batch()
before = model(ids, mask)
with na.patch(model, na.NTK(4.0), family=toy_family()):
    print("patched", bool((model(ids, mask) != before).any()))
print("back", bool((model(ids, mask) == before).all()))
try: na.patch(model)
except ValueError as error: print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "patched True\nback True\nmodel must hold ALiBi attention" in done.stdout, done.stderr


def test_threads_that_share_a_model_keep_the_lengths_of_their_caches() -> None:
    model, (ids, _) = ToyModel(causal=True, layers=3).eval(), toy_batch()
    held = threading.local()

    def cached(attend: Any, layer: Any, hidden: torch.Tensor, mask: Any) -> torch.Tensor:
        query, key, value = layer.heads(hidden)
        cache = getattr(held, "cache", None)
        output, _ = attend(query, key, value, mask=mask if cache is None else None, cache=cache)
        mixed: torch.Tensor = layer.output(output.transpose(1, 2).flatten(2))
        return mixed

    def step(begin: int, end: int, cache: Any) -> torch.Tensor:
        held.cache = cache
        return run(model, ids[:, begin:end])

    with na.patch(model, na.NTK(4.0), family=toy_family(True, forward=cached)):
        expected, caches = [], [transformers.DynamicCache() for _ in range(2)]
        lengths = 30, 10
        for length, cache in zip(lengths, caches, strict=True):
            step(0, length, cache)
            expected.append(step(length, length + 1, copy.deepcopy(cache)))
        meeting = threading.Barrier(2, timeout=60)  # both are behind the same layer

        def meet(*_: Any) -> None:
            meeting.wait()

        hooks = [layer.register_forward_hook(meet) for layer in model.attentions]
        with ThreadPoolExecutor(2) as pool:
            steps = [pool.submit(step, n, n + 1, x) for n, x in zip(lengths, caches, strict=True)]
            for done, right in zip(steps, expected, strict=True):
                assert torch.equal(done.result(), right)
        for hook in hooks:
            hook.remove()


class Checkpointed(ToyModel):
    """A toy whose layers run again in the backward pass."""

    reentrant = False

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None) -> torch.Tensor:
        hidden = self.embed(input_ids)
        for attention in self.attentions:
            given = attention, hidden, attention_mask
            hidden = hidden + checkpoint(*given, use_reentrant=self.reentrant)
        return hidden


def checkpointed(reentrant: bool) -> tuple[Any, Any]:
    torch.manual_seed(3)
    model = Checkpointed().eval()
    model.reentrant = reentrant
    return model, toy_family(matches=lambda x: isinstance(x, Checkpointed))


def gradient(model: Any, output: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    output.square().sum().backward()  # a reentrant checkpoint takes no inputs=
    found: torch.Tensor = model.embed.weight.grad
    return found


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_run_again_by_their_patch(reentrant: bool, masked: bool) -> None:
    (model, family), (ids, mask) = checkpointed(reentrant), toy_batch()
    given = ids, mask if masked else None
    with na.patch(model, "ntk:8", family=family):
        model.reentrant = False
        expected = gradient(model, model(*given))
        model.reentrant = reentrant
        outputs = [model(ids[:, :9], None), model(*given)]  # micro-batches of two lengths
        torch.testing.assert_close(gradient(model, outputs[1]), expected)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize("runs", [False, True], ids=["before it runs", "after it has run"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_patch_that_was_replaced_before_the_backward_pass_is_refused(
    reentrant: bool, masked: bool, runs: bool
) -> None:
    if reentrant and runs:
        pytest.skip("a reentrant checkpoint of torch keeps nothing but the inputs")
    (model, family), (ids, mask) = checkpointed(reentrant), toy_batch()
    given = ids, mask if masked else None
    na.patch(model, "ntk:8", family=family)
    output = model(*given)
    na.patch(model, na.Interpolation(64.0), family=family)
    if runs:
        model(*given)
    with pytest.raises(ValueError, match=r"^the patch must stay as it is until the backward pass"):
        gradient(model, output)


def test_checkpoints_of_two_patched_models_that_share_layers() -> None:
    (first, family), (ids, mask) = checkpointed(False), toy_batch()
    second, _ = checkpointed(False)
    second.attentions = first.attentions
    na.patch(first, "ntk:8", family=family)
    na.patch(second, na.Interpolation(8.0), family=family)
    outputs = [model(ids, mask.clone()) for model in (first, second)]
    for model, output in zip((first, second), outputs, strict=True):
        alone, _ = checkpointed(False)
        alone.load_state_dict(model.state_dict())
        na.patch(alone, na.patched(model)[0].scaling, family=family)
        torch.testing.assert_close(gradient(model, output), gradient(alone, alone(ids, mask)))


def test_a_model_of_a_window_cache_that_runs_amid_its_own_pass() -> None:
    model, (ids, _) = ToyModel(causal=True, layers=3).eval(), toy_batch()
    held: dict[str, Any] = {"cache": None}

    def cached(attend: Any, layer: Any, hidden: torch.Tensor, mask: Any) -> torch.Tensor:
        query, key, value = layer.heads(hidden)
        output, _ = attend(query, key, value, cache=held["cache"])
        mixed: torch.Tensor = layer.output(output.transpose(1, 2).flatten(2))
        return mixed

    def amid(*_: Any) -> None:
        hook.remove()
        cache, held["cache"] = held["cache"], None
        run(model, ids)
        held["cache"] = cache

    family = toy_family(True, forward=cached, example=lambda _: {"input_ids": ids})
    with na.patch(model, family=family, window=6, sink=1):
        whole = run(model, ids)
        held["cache"] = na.WindowCache(6, 1)
        for begin, end in ((0, 4), (4, 5), (5, 6), (6, 15), (15, 16)):
            hook = model.attentions[1].register_forward_pre_hook(amid)
            found = run(model, ids[:, begin:end])
            torch.testing.assert_close(found, whole[:, begin:end], **CLOSE)

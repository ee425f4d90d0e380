"""A cell that patches is run again: nesting, what is in force, and taking it back."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest
import torch
import transformers

import ntk_alibi as na
from model_runs import run
from small_models import make_model

AGAIN = pytest.mark.filterwarnings("ignore:model is patched by the same call already:UserWarning")


def test_the_same_call_again_nests_and_says_so(ids: torch.Tensor) -> None:
    model = make_model("bloom")
    stock = run(model, ids)
    first = na.patch(model, "ntk:4")
    once = run(model, ids)
    with pytest.warns(UserWarning, match=r"same call already.*na\.unpatch\(model\)"):
        second = na.patch(model, na.NTK(4.0))
    assert "in force, over 1 other patch" in repr(second)
    assert "under 1 newer patch" in repr(first)
    assert torch.equal(run(model, ids), once)
    second.undo()
    assert "undone" in repr(second)
    assert repr(first).endswith("in force>")
    assert torch.equal(run(model, ids), once)
    na.unpatch(model)
    assert "undone" in repr(first)
    first.undo()
    assert torch.equal(run(model, ids), stock)


def test_a_cell_with_a_block_leaves_nothing_however_often_it_runs(ids: torch.Tensor) -> None:
    model = make_model("bloom")
    stock = run(model, ids)
    for factor in (2.0, 4.0, 4.0):
        with na.patch(model, na.NTK(factor)):
            run(model, ids)
        with pytest.raises(ZeroDivisionError), na.patch(model, na.NTK(factor)):
            assert 1 / 0
    assert na.patched(model) == []
    assert torch.equal(run(model, ids), stock)


@AGAIN
def test_the_same_patch_in_the_same_block_leaves_the_outer_one(ids: torch.Tensor) -> None:
    model = make_model("bloom")
    with na.patch(model, "ntk:4"):
        expected = run(model, ids)
        with na.patch(model, "ntk:4"):
            pass
        assert torch.equal(run(model, ids), expected)
    assert na.patched(model) == []


def test_another_method_or_option_counts_from_then_on(ids: torch.Tensor) -> None:
    model, other = make_model("bloom"), make_model("bloom")
    for options in ({"scaling": "ntk:4"}, {"scaling": "ntk:8"}, {"window": 7}, {"log_n": 9}):
        na.patch(model, **options)  # no warning: the call is another
        with na.patch(other, **options):
            assert torch.equal(run(model, ids), run(other, ids))
    assert len(na.patched(model)) == 4


def test_a_wrong_call_leaves_the_patch_before_in_force(ids: torch.Tensor) -> None:
    model = make_model("bloom")
    na.patch(model, "ntk:4")
    expected = run(model, ids)
    for wrong in ({"scaling": "nkt:4"}, {"attention": "flash"}, {"window": 0}):
        with pytest.raises(ValueError, match="must be"):
            na.patch(model, **{"scaling": "ntk:2", **wrong})
    assert [patch.scaling for patch in na.patched(model)] == [na.NTK(4.0)]
    assert torch.equal(run(model, ids), expected)


@AGAIN
def test_handles_that_are_forgotten_can_be_undone(ids: torch.Tensor) -> None:
    model = make_model("bloom")
    stock = run(model, ids)
    for _ in range(3):
        na.patch(model, "ntk:4")
    gc.collect()
    newest = na.patched(model)[-1]
    newest.undo()
    assert len(na.patched(model)) == 2
    na.unpatch(model)
    assert torch.equal(run(model, ids), stock)


@pytest.mark.parametrize("form", ["fused", "eager", "traceable"])
def test_copies_are_patched_and_undone_apart(ids: torch.Tensor, form: Any) -> None:
    model = make_model("bloom")
    stock = run(model, ids)
    handle = na.patch(model, "ntk:4", attention=form)
    expected = run(model, ids)
    copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    handle.undo()
    for clone in copies:
        assert torch.equal(run(clone, ids), expected)
        (own,) = na.patched(clone)
        assert own.scaling == na.NTK(4.0)
        with na.patch(clone, "ntk:2"):
            own.undo()
            assert [patch.scaling for patch in na.patched(clone)] == [na.NTK(2.0)]
        assert torch.equal(run(clone, ids), stock)
    assert torch.equal(run(model, ids), stock)


def test_what_is_in_force_is_readable() -> None:
    model = make_model("bloom")
    na.patch(model)
    na.patch(model, "dynamic-ntk:2:query:logn=0.5", attention="eager", window=8, sink=2)
    assert [repr(patch) for patch in na.patched(model)] == [
        "<patch of BLOOM, plain ALiBi, attention='fused', under 1 newer patch>",
        "<patch of BLOOM, DynamicNTK(rate=2.0, train_length=2048, per='query'), attention='eager', "
        "window=8, sink=2, log_n=LogN(train_length=2048, strength=0.5, biased=False), in force, "
        "over 1 other patch>",
    ]


class Pipeline:
    """A holder of a model, as transformers' pipelines are."""

    def __init__(self, model: Any) -> None:
        self.model = model


def test_wrong_models_say_what_to_pass() -> None:
    model = make_model("bloom")
    handle = na.patch(model)
    for wrong, advice in (
        ("bigscience/bloom-560m", r"got str: load it .*from_pretrained"),
        (
            transformers.BloomForCausalLM,
            "got the class BloomForCausalLM: pass a model, an instance of it",
        ),
        (model.config, "got BloomConfig$"),
        (handle, r"got PatchHandle: call its undo\(\)"),
        (Pipeline(model), r"got Pipeline: pass its \.model"),
    ):
        for function in (na.patch, na.patched, na.unpatch):
            with pytest.raises(TypeError, match=rf"model must be a torch\.nn\.Module, {advice}"):
                function(wrong)


def test_a_handle_has_one_block(ids: torch.Tensor) -> None:
    """A notebook's cell that runs again must not compute the plain model in silence."""
    model = make_model("bloom")
    stock = run(model, ids)
    handle = na.patch(model, "ntk:4")
    with handle:
        expected = run(model, ids)
        with pytest.raises(ValueError, match="got one inside a block of its own"), handle:
            pass
        assert torch.equal(run(model, ids), expected)
    with pytest.raises(ValueError, match=r"got one that was undone: call na\.patch\(model"), handle:
        pass
    taken = na.patch(model, "ntk:4")
    na.unpatch(model)
    with pytest.raises(ValueError, match="patch must be in force and have one with block"), taken:
        pass
    assert torch.equal(run(model, ids), stock)

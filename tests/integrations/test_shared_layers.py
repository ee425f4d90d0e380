"""Layers that several models share, and that are copied, repeated or dropped.

A patch is of a model: its layers attend by it where that model calls them, and nowhere else.
"""

from __future__ import annotations

import copy
import gc
import io
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ntk_alibi as na
from layer_runs import CLOSE, DRAFT, ELSEWHERE, IDS, MAIN, blocks, forms, patched, run
from model_runs import enable_checkpointing
from small_models import families, make_model
from table_families import model_of


def set_blocks(model: Any, layers: list[nn.Module]) -> None:
    parent, name = next(
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if child is blocks(model)
    )
    setattr(parent, name, nn.ModuleList(layers))


def draft_of(model: Any, *kept: int, name: str) -> Any:
    """Return a model of layers of another one, which share its parts."""
    draft = make_model(name, layers=len(kept))
    for part, child in model.base_model.named_children():
        setattr(draft.base_model, part, child)
    set_blocks(draft, [blocks(model)[i] for i in kept])
    draft.lm_head = model.lm_head
    return draft


@pytest.fixture(params=["bloom", "mpt", "falcon"])
def shared(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """Return a model, and a draft of its first layers."""
    model = make_model(request.param)
    return model, draft_of(model, 0, 1, name=request.param)


@pytest.mark.parametrize("form", ["fused", "eager"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(2))))
def test_patches_of_models_that_share_layers(shared: Any, form: Any, order: Any) -> None:
    expected = [patched(x, y, form) for x, y in zip(shared, (MAIN, DRAFT), strict=True)]
    stock = [run(x) for x in shared]
    handles = [na.patch(x, y, attention=form) for x, y in zip(shared, (MAIN, DRAFT), strict=True)]
    for model, output in zip(shared, expected, strict=True):
        assert torch.equal(run(model), output)
    handles[order[0]].undo()
    torch.testing.assert_close(run(shared[order[1]]), expected[order[1]], **CLOSE)
    with pytest.raises(RuntimeError, match=ELSEWHERE):
        run(shared[order[0]])
    handles[order[1]].undo()
    for model, output in zip(shared, stock, strict=True):
        assert torch.equal(run(model), output)


@forms
def test_a_draft_without_a_patch_is_refused(shared: Any, form: Any) -> None:
    model, draft = shared
    stock = run(draft)
    with na.patch(model, MAIN, attention=form):
        assert na.patched(draft) == []
        with pytest.raises((RuntimeError, ValueError), match=ELSEWHERE) as caught:
            run(draft)
        assert "\n" not in str(caught.value)
        assert torch.equal(run(model), patched(model, MAIN, form))
    assert torch.equal(run(draft), stock)


def test_two_traceable_patches_of_a_layer_are_refused(shared: Any) -> None:
    model, draft = shared
    with na.patch(model, MAIN, attention="traceable"):
        expected = run(model)
        with pytest.raises(ValueError, match=r"^model must have attention layers of its own"):
            na.patch(draft, DRAFT, attention="traceable")
        assert na.patched(draft) == []
        assert torch.equal(run(model), expected)


@families
def test_a_draft_of_later_layers(name: str) -> None:
    """The same layers have other places in it, where a bias is for one layer."""
    of_second = {1: na.KerpleLog([0.5] * 8, [0.3] * 8)}
    model = make_model(name, layers=4)
    draft = draft_of(model, 2, 3, name=name)
    expected = [patched(x, of_second) for x in (model, draft)]
    with na.patch(model, of_second), na.patch(draft, of_second):
        for x, output in zip((model, draft), expected, strict=True):
            assert torch.equal(run(x), output)


@families
def test_a_student_of_copied_blocks_is_stock(name: str) -> None:
    model, student = make_model(name), make_model(name, layers=2)
    stock = make_model(name, layers=2)
    set_blocks(stock, [copy.deepcopy(blocks(model)[i]) for i in (0, 2)])
    na.patch(model, MAIN)
    set_blocks(student, [copy.deepcopy(blocks(model)[i]) for i in (0, 2)])
    torch.testing.assert_close(run(student), run(stock), **CLOSE)
    assert na.patched(student) == []
    with na.patch(student, DRAFT):
        torch.testing.assert_close(run(student), patched(stock, DRAFT), **CLOSE)
    torch.testing.assert_close(run(student), run(stock), **CLOSE)


@families
@pytest.mark.parametrize("form", ["fused", "eager"])
def test_one_layer_object_twice(name: str, form: Any) -> None:
    model, twin = make_model(name), make_model(name)
    for x in (model, twin):
        first, second, _ = blocks(x)
        set_blocks(x, [first, second, first if x is model else copy.deepcopy(first)])
    stock = run(model)
    with na.patch(model, MAIN, attention=form), na.patch(twin, MAIN, attention=form):
        torch.testing.assert_close(run(model), run(twin), **CLOSE)
    assert torch.equal(run(model), stock)
    assert not any("ntk_alibi" in x for part in model.modules() for x in vars(part))


@families
@pytest.mark.parametrize("form", ["fused", "eager"])
def test_blocks_that_are_taken_out_and_appended_after_the_patch(name: str, form: Any) -> None:
    model, twin = make_model(name), make_model(name)
    na.patch(model, MAIN, attention=form)
    for x in (model, twin):
        layers = blocks(x)
        layers.append(copy.deepcopy(layers[1]))
        del layers[0]
    torch.testing.assert_close(run(model), patched(twin, MAIN, form), **CLOSE)
    na.unpatch(model)
    torch.testing.assert_close(run(model), run(twin), **CLOSE)


def test_a_t5_whose_first_block_was_dropped_before_the_patch() -> None:
    """The first block has the table of biases, which the others share: stock adds zeros then."""
    model = model_of("t5, encoder")
    model.encoder.block = model.encoder.block[1:]
    with pytest.raises(
        ValueError, match=r"^model must have its table of biases in its first layer"
    ):
        na.patch(model)
    assert na.patched(model) == []


def test_a_t5_whose_first_block_is_dropped_after_the_patch() -> None:
    model = model_of("t5, encoder")
    handle = na.patch(model)
    model.encoder.block = model.encoder.block[1:]
    with pytest.raises(ValueError, match=r"^model must have the layers that it had at the patch"):
        run(model)
    handle.undo()
    run(model)


@families
def test_a_model_that_is_gone_without_undo_leaves_its_layers_stock(name: str) -> None:
    model = make_model(name)
    draft = draft_of(model, 0, 1, name=name)
    stock = run(draft)
    na.patch(model, MAIN)
    del model
    gc.collect()
    torch.testing.assert_close(run(draft), stock, **CLOSE)
    with na.patch(draft, DRAFT):
        assert torch.equal(run(draft), patched(draft, DRAFT))
    assert not any("ntk_alibi" in x for part in draft.modules() for x in vars(part))


def bytes_of_file(block: nn.Module) -> int:
    file = io.BytesIO()
    torch.save(block, file)
    return file.tell()


def bytes_of_copy(block: nn.Module) -> int:
    memo: dict[int, Any] = {}
    copy.deepcopy(block, memo)
    return sum(x.nbytes for x in memo.values() if isinstance(x, nn.Parameter))


@families
@pytest.mark.parametrize(
    "size", [bytes_of_file, bytes_of_copy, lambda block: len(pickle.dumps(block))]
)
def test_a_block_carries_nothing_of_its_model(name: str, size: Callable[[Any], int]) -> None:
    model = make_model(name, layers=8)
    stock = size(blocks(model)[0])
    with na.patch(model, MAIN):
        assert size(blocks(model)[0]) < 1.5 * stock


@pytest.mark.parametrize("family", ["bloom", "mpt", "falcon", "t5, encoder", "mpnet"])
def test_what_tools_do_with_the_arguments_of_a_layer(family: str) -> None:
    """They print them, copy them, and run the layer again, as calibration does."""
    model, seen = model_of(family), {}
    na.patch(model)
    layer = blocks(model)[0]

    def keep(_: Any, args: Any, kwargs: Any) -> None:
        seen["given"] = args, kwargs

    layer.register_forward_pre_hook(keep, with_kwargs=True)
    run(model)
    args, kwargs = seen["given"]
    assert "patch of" in repr(seen["given"])
    copied = copy.deepcopy(seen["given"])
    with torch.no_grad():
        again = [layer(*args, **kwargs), layer(*copied[0], **copied[1])]
    first, second = (x if isinstance(x, torch.Tensor) else x[0] for x in again)
    assert torch.equal(first, second)
    with pytest.raises(TypeError, match=r"^arguments of a patched layer must not be pickled"):
        pickle.dumps(seen["given"])


@families
def test_a_layer_called_from_elsewhere_is_refused(name: str) -> None:
    model, seen = make_model(name), {}
    layer: Any = next(x for x in model.modules() if type(x).__name__.endswith("Attention"))

    def keep(_: Any, args: Any, kwargs: Any) -> None:
        seen["given"] = args, kwargs

    hook = layer.register_forward_pre_hook(keep, with_kwargs=True)
    stock = run(model)
    hook.remove()
    args, kwargs = seen["given"]
    expected = layer(*args, **kwargs)[0]
    with na.patch(model, MAIN):
        with pytest.raises(RuntimeError, match=ELSEWHERE):
            layer(*args, **kwargs)
        assert torch.equal(copy.deepcopy(layer)(*args, **kwargs)[0], expected)
    assert torch.equal(layer(*args, **kwargs)[0], expected)
    assert torch.equal(run(model), stock)


@pytest.mark.needs("torch >= 2.12", "Dynamo of older ones reads no arrays of a bias")
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
@torch.no_grad()
def test_a_graph_of_each_of_two_models_that_share_layers() -> None:
    model = make_model("mpt")
    draft = draft_of(model, 0, 1, name="mpt")
    na.patch(model, MAIN)
    na.patch(draft, DRAFT)
    torch.compiler.reset()
    for x in (model, draft):
        compiled = torch.compile(x, backend="eager", fullgraph=True)
        torch.testing.assert_close(run_compiled(compiled), run(x))
    torch.compiler.reset()


def run_compiled(model: Any) -> torch.Tensor:
    output: torch.Tensor = model(IDS, use_cache=False)[0]
    return output


@pytest.mark.parametrize("reentrant", [False, True])
@families
def test_checkpoints_of_a_model_that_shares_layers(name: str, reentrant: bool) -> None:
    model = make_model(name)
    draft = draft_of(model, 0, 1, name=name)
    na.patch(model, MAIN)
    na.patch(draft, DRAFT)

    def gradient(x: Any) -> torch.Tensor:
        x.zero_grad()
        x(IDS, labels=IDS, use_cache=False).loss.backward()
        found: torch.Tensor = x.get_input_embeddings().weight.grad.clone()
        return found

    expected = [gradient(x) for x in (model, draft)]
    for x in (model, draft):
        x.train()
        enable_checkpointing(x, {"use_reentrant": reentrant})
        if reentrant:
            x.enable_input_require_grads()
    for x, wanted in zip((model, draft), expected, strict=True):
        torch.testing.assert_close(gradient(x), wanted, atol=1e-6, rtol=1e-4)

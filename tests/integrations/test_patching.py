"""Patches: one at a time, of one model, taken back; copies and threads."""

from __future__ import annotations

import copy
import gc
import inspect
import itertools
import pickle
import threading
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import BloomForCausalLM
from transformers.models.bloom import modeling_bloom

import ntk_alibi as na
from model_runs import BATCH, LENGTH, LOGITS, run, state_of
from ntk_alibi.integrations import transformers_versions
from small_models import VOCABULARY, families, make_model
from table_families import FAMILIES, model_of

forms = pytest.mark.parametrize("form", ["fused", "eager", "traceable"])


def output(model: Any, ids: torch.Tensor) -> torch.Tensor:
    more = {"decoder_input_ids": ids} if getattr(model.config, "is_encoder_decoder", False) else {}
    with torch.no_grad():
        made = model(ids, **more)
    found: torch.Tensor = made if isinstance(made, torch.Tensor) else made[0]
    return found


@pytest.mark.filterwarnings("ignore:Increasing alibi size:UserWarning")  # MosaicBERT's own
@pytest.mark.parametrize("family", ["bloom", "mpt", "falcon", "baichuan", "jina", "mosaic", "toy",
                                    "t5", "mpnet"])  # fmt: skip
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_last_patch_counts_and_undo_is_to_the_bit(
    ids: torch.Tensor, family: str, order: tuple[int, ...]
) -> None:
    model, beside = model_of(family), FAMILIES[family].patch
    output(model, ids)  # some grow what they keep
    before, stock = state_of(model), output(model, ids)
    handles, found = [], []
    for form in ("eager", "fused", "eager"):
        handles.append(na.patch(model, attention=form, **beside))
        found.append(output(model, ids))
        assert [x.attention for x in na.patched(model)] == [form]
    assert torch.equal(found[0], found[2])
    assert [repr(x).split(", ")[-1] for x in handles] == ["replaced>", "replaced>", "in force>"]
    undone = False
    for number in order:
        handles[number].undo()
        undone |= number == 2
        assert torch.equal(output(model, ids), stock if undone else found[2])
        assert len(na.patched(model)) == (0 if undone else 1)
    assert all(repr(x).endswith("undone>") for x in handles)
    assert state_of(model) == before


@pytest.mark.parametrize("method", ["ntk:4", "flat:8", None])
@pytest.mark.parametrize("family", ["bloom", "t5"])
def test_the_end_of_an_inner_block_gives_the_outer_patch_back(
    family: str, method: str | None
) -> None:
    if family == "t5":
        outer_method, method = None, None
    else:
        outer_method = "ntk:4"
    model, ids = model_of(family), torch.arange(3, 23)[None]
    before, stock = state_of(model), output(model, ids)
    with na.patch(model, outer_method, attention="eager") as outer:
        expected, entry = output(model, ids), dict(model.config.ntk_alibi)
        for _ in range(2):
            with na.patch(model, method) as inner:
                assert "replaced" in repr(outer)
            assert "undone" in repr(inner).replace("replaced", "undone")
            assert "in force" in repr(outer)
            assert torch.equal(output(model, ids), expected)
            assert model.config.ntk_alibi == entry
        with na.patch(model, method) as inner:
            inner.undo()
            assert torch.equal(output(model, ids), stock)
        assert na.patched(model) == []
        na.patch(model, method)
    assert len(na.patched(model)) == 1  # the patch that came last was in no block
    na.unpatch(model)
    assert torch.equal(output(model, ids), stock)
    assert state_of(model) == before


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


def test_another_method_or_option_counts_from_then_on(ids: torch.Tensor) -> None:
    """Nothing of the patch before stays."""
    model, other = make_model("bloom"), make_model("bloom")
    for options in ({"method": "ntk:4"}, {"method": "original", "window": 7}, {"method": "ntk:8"}):
        na.patch(model, **options)
        with na.patch(other, **options):
            assert torch.equal(run(model, ids), run(other, ids))
    na.patch(model, window=7)
    with na.patch(other, window=7):
        assert torch.equal(run(model, ids), run(other, ids))


def test_a_wrong_call_leaves_the_patch_before_in_force(ids: torch.Tensor) -> None:
    model = make_model("bloom")
    na.patch(model, "ntk:4")
    expected, entry = run(model, ids), dict(model.config.ntk_alibi)
    for wrong in ({"method": "nkt:4"}, {"attention": "flash"}, {"window": 0}):
        with pytest.raises(ValueError, match="must be"):
            na.patch(model, **{"method": "ntk:2", **wrong})
    assert [patch.scaling for patch in na.patched(model)] == [na.NTK(4.0)]
    assert torch.equal(run(model, ids), expected)
    assert model.config.ntk_alibi == entry


def test_handles_that_are_forgotten_can_be_undone(ids: torch.Tensor) -> None:
    model = make_model("bloom")
    before, stock = state_of(model), run(model, ids)
    na.unpatch(model)
    for undo in (lambda: na.patched(model)[0].undo(), lambda: na.unpatch(model)):
        na.patch(model, "ntk:4")
        gc.collect()
        assert not torch.equal(run(model, ids), stock)
        undo()
        assert torch.equal(run(model, ids), stock)
        assert state_of(model) == before
    assert na.patched(torch.nn.Linear(1, 1)) == []


@families
@forms
def test_a_patch_of_the_inner_model_is_one_of_the_whole(
    ids: torch.Tensor, name: str, form: Any
) -> None:
    model = make_model(name)
    na.patch(model, na.NTK(2.0))
    with na.patch(model.base_model, na.NTK(4.0), attention=form):
        assert [x.scaling for x in na.patched(model)] == [na.NTK(4.0)]
        inner = run(model, ids)
    assert [x.scaling for x in na.patched(model)] == [na.NTK(2.0)]
    with na.patch(model, na.NTK(4.0), attention=form):
        assert torch.equal(run(model, ids), inner)


def test_parts_that_are_patched_apart() -> None:
    model = model_of("t5")
    first, second = na.patch(model.encoder, window=5), na.patch(model.decoder)
    assert len(na.patched(model)) == 2
    first.undo()
    assert [repr(x) for x in na.patched(model)] == [repr(second)]
    both = na.patch(model, window=3)
    assert len(na.patched(model)) == 1
    second.undo()
    assert "in force" in repr(both)
    na.unpatch(model)
    assert na.patched(model) == []


@forms
@families
def test_copies_are_patched_and_undone_apart(ids: torch.Tensor, name: str, form: Any) -> None:
    model = make_model(name)
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
    first = na.patch(model)
    na.patch(model, "dynamic-ntk:logn=0.5", attention="eager", window=8, sink=2)
    assert repr(first) == "<patch of BLOOM, plain ALiBi, attention='fused', replaced>"
    assert [repr(patch) for patch in na.patched(model)] == [
        "<patch of BLOOM, DynamicNTK(rate=2.0, train_length=2048), attention='eager', window=8, "
        "sink=2, log_n=LogN(train_length=2048, strength=0.5), in force>",
    ]


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
    taken = na.patch(model, "ntk:4")
    na.patch(model, "ntk:2")
    for state in ("replaced", "undone"):
        for wrong in (handle, taken):
            with pytest.raises(ValueError, match=f"^patch must be .* was {state}: call"), wrong:
                pass
        na.unpatch(model)
    assert torch.equal(run(model, ids), stock)


def test_a_warning_of_patch_names_the_line_that_calls_it() -> None:
    model = make_model("bloom")
    model.config.seq_length = 64
    with pytest.warns(UserWarning, match="train_length") as caught:
        na.patch(model, na.DynamicNTK(2.0, 9))
    assert {warning.filename for warning in caught} == {__file__}


def test_only_this_instance_is_patched(ids: torch.Tensor) -> None:
    config = make_model("bloom").config
    a, b = BloomForCausalLM(config).eval(), BloomForCausalLM(config).eval()
    b.load_state_dict(a.state_dict())
    stock, name = run(b, ids), config._attn_implementation
    with na.patch(a, na.Interpolation(4.0)):
        stretched = run(a, ids)
        assert not torch.equal(stretched, stock)
        assert torch.equal(run(b, ids), stock)
        with na.patch(b, na.Interpolation(4.0)):
            assert torch.equal(run(b, ids), stretched)
        assert torch.equal(run(a, ids), stretched)
    assert torch.equal(run(a, ids), stock)
    assert a.transformer.config is b.transformer.config is config
    assert config._attn_implementation == name


def test_threads_do_not_see_each_other(ids: torch.Tensor) -> None:
    shared, wrong = make_model("bloom"), []
    others = [copy.deepcopy(shared) for _ in range(4)]
    choices = [None, na.NTK(2.0), na.Interpolation(2.0), na.DynamicNTK(2.0, 16)]
    expected = []
    for scaling in choices:
        with na.patch(shared, scaling):
            expected.append(run(shared, ids))

    def work(model: Any, scaling: Any, logits: torch.Tensor) -> None:
        for _ in range(10):
            with na.patch(model, scaling):
                if not torch.equal(run(model, ids), logits):
                    wrong.append(scaling)

    threads = [
        threading.Thread(target=work, args=arguments)
        for arguments in zip(others, choices, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_several_threads_on_one_patched_model(ids: torch.Tensor) -> None:
    model, results = make_model("bloom"), []
    with na.patch(model, na.DynamicNTK(2.0, 16)):
        expected = [run(model, ids[:, :n]) for n in (40, 30, 20)]

        def work(index: int) -> None:
            n = (40, 30, 20)[index]
            results.extend(torch.equal(run(model, ids[:, :n]), expected[index]) for _ in range(10))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [True] * 30


def test_a_bias_that_transformers_builds_elsewhere_has_no_effect(
    models: dict, ids: torch.Tensor
) -> None:
    model = models["bloom"]
    with na.patch(model, na.NTK(4.0), attention="eager"):
        expected = run(model, ids)
        tensor = torch.ones(BATCH * 8, 1, LENGTH).cumsum(dim=-1)
        model.transformer.build_alibi_tensor = lambda *_, **__: tensor
        assert torch.equal(run(model, ids), expected)


def test_modeling_code_with_other_arguments_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Any, hidden_states: Any, position_bias: Any) -> None: ...

    model = make_model("bloom")
    monkeypatch.setattr(modeling_bloom.BloomAttention, "forward", forward)
    with pytest.raises(
        RuntimeError, match=r"is not what the BLOOM patch expects: .*forward has no"
    ):
        na.patch(model, na.NTK(2.0))


def test_no_tokens_and_no_rows(models: dict) -> None:
    for shape in ((0, 5), (2, 0)):
        with na.patch(models["bloom"], na.NTK(2.0)):
            assert run(models["bloom"], torch.zeros(shape, dtype=torch.long)).shape == (
                *shape,
                VOCABULARY,
            )


def test_the_tested_versions_are_those_declared() -> None:
    assert transformers_versions.TRANSFORMERS_VERSIONS[0] <= Version(transformers.__version__)


def run_patched(model: Any, ids: torch.Tensor, method: str, form: Any) -> torch.Tensor:
    with na.patch(model, method, attention=form):
        return run(model, ids)


@pytest.mark.parametrize("form", ["fused", "eager"])
@pytest.mark.parametrize("family", ["bloom", "mpt", "falcon", "t5", "mpnet", "jina"])
def test_a_patch_is_a_class(family: str, form: Any) -> None:
    """Wrappers, copies and calibration tools find what a class has, and nothing on the instance."""
    model = model_of(family)
    parts = list(model.modules())
    classes = [type(x) for x in parts]
    signatures = [inspect.signature(x.forward) for x in parts]
    with na.patch(model, attention=form):
        assert any(type(x) is not cls for x, cls in zip(parts, classes, strict=True))
        for part, cls, signature in zip(parts, classes, signatures, strict=True):
            assert isinstance(part, cls)
            assert type(part).__name__ == cls.__name__
            assert type(part).__module__ == cls.__module__
            assert inspect.signature(part.forward) == signature
            assert "forward" not in vars(part)
        again = [type(x) for x in parts]
        with na.patch(copy.deepcopy(model), attention=form):
            pass
        na.patch(model, attention=form)
        assert [type(x) for x in parts] == again
        pickled = pickle.loads(pickle.dumps(model))
        assert [type(x) for x in pickled.modules()] == again
    na.unpatch(model)
    assert [type(x) for x in parts] == classes
    assert not any("ntk_alibi" in name for x in parts for name in vars(x))


class Sharded:
    """What FSDP2 and parametrizations do: a class of the class that a module has."""

    @staticmethod
    def give(module: Any) -> None:
        cls = type(module)
        module.__class__ = type(f"Sharded{cls.__name__}", (cls,), {})


@pytest.mark.parametrize("before", [False, True], ids=["after the patch", "before the patch"])
@pytest.mark.parametrize("form", ["fused", "eager", "traceable"])
@pytest.mark.parametrize("family", ["bloom", "mpt", "falcon"])
def test_others_may_make_a_class_of_a_patched_one(family: str, form: Any, before: bool) -> None:
    model, ids = make_model(family), torch.arange(3, 23)[None]
    stock = run(model, ids)
    expected = run_patched(model, ids, "ntk:4", form)
    if before:
        for part in model.modules():
            Sharded.give(part)
    handle = na.patch(model, "ntk:4", attention=form)
    if not before:
        for part in model.modules():
            Sharded.give(part)
    torch.testing.assert_close(run(model, ids), expected, **LOGITS)
    handle.undo()
    torch.testing.assert_close(run(model, ids), stock, **LOGITS)
    assert all(type(x).__name__.startswith("Sharded") for x in model.modules())
    with na.patch(model, "ntk:4", attention=form):
        torch.testing.assert_close(run(model, ids), expected, **LOGITS)

"""BLOOM, MPT and Falcon on four processes: passes, generation, and ranks that send nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from torch import distributed

import ntk_alibi as na
from ntk_alibi.distributed.ranks import Ranks
from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.torch import shard
from processes import run
from small_models import VOCABULARY, make_model

#: Texts of this many tokens, of which the second begins with padding.
LENGTH, PADDING = 331, 50

#: Three layers of float32 sums, at logits up to 20; losses and relative errors of gradients.
LOGITS, LOSS, GRADIENTS = 1e-4, 1e-5, 1e-5

ZIGZAG = {"layout": "zigzag"}

#: Families whose heads and texts are divided, and what averages gradients over parts of a text.
DIVIDED = {"bloom": "dp_replicate_size", "falcon": "fsdp_size"}


def batch(length: int = LENGTH) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(1, VOCABULARY, (2, length), generator=rng)
    mask = torch.ones_like(ids)
    mask[1, :PADDING] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.where(mask > 0, -100)}


def gradients_of(model: Any) -> dict[str, torch.Tensor]:
    """Return the whole gradients of a model, whose weights may be divided."""
    found = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        found[name] = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return found


def differences(
    whole: Any,
    model: Any,
    batch: dict[str, torch.Tensor],
    group: Any,
    *,
    averaged: bool = False,
    layout: dict[str, Any] | None = None,
    **options: Any,
) -> list[float]:
    """Return the greatest differences of logits and loss, and the relative one of gradients.

    Args:
        whole: a model that reads the text alone.
        model: the same model, which shares the text with the ranks of a group.
        batch: the text, with attention_mask and labels.
        group: the ranks.
        averaged: whether something else averages gradients over the ranks.
        layout: keywords of `shard` and `patch`.
        options: keywords of `patch`.
    """
    ranks, layout = Ranks.from_group(group), layout or {}
    own = shard({"input_ids": torch.arange(batch["input_ids"].shape[1])[None]}, group, **layout)
    at = own["input_ids"][0]
    for each in (whole, model):
        each.zero_grad(set_to_none=True)
    with na.patch(whole, **options):
        expected = whole(**batch)
        expected.loss.backward()
    with na.patch(model, **options, **layout, group=group) as patch:
        result = model(**patch.shard(batch))
        result.loss.backward()
    loss = torch.stack(ranks.gather(result.loss.detach())).mean()
    exact, worst = gradients_of(whole), 0.0
    for name, gradient in gradients_of(model).items():
        if not averaged:
            gradient = torch.stack(ranks.gather(gradient)).mean(0)
        worst = max(worst, float((gradient - exact[name]).norm() / exact[name].norm()))
    real = batch["attention_mask"][:, at] > 0
    logits = (result.logits - expected.logits[:, at])[real]
    return [float(logits.detach().abs().max()), float(loss - expected.loss.detach()), worst]


def assert_small(errors: list[float], name: str) -> None:
    for error, bound in zip(errors, (LOGITS, LOSS, GRADIENTS), strict=True):
        assert abs(error) < bound, (name, errors)


class Wire:
    """Counts the bytes of tensors that this rank sends to others, while it is entered."""

    def __init__(self) -> None:
        self.sent = 0
        self._plain = distributed.all_gather, distributed.all_to_all_single

    def __enter__(self) -> Wire:
        gather, exchange = self._plain

        def counted_gather(every: Any, tensor: Any, group: Any = None, **options: Any) -> Any:
            self.sent += tensor.numel() * tensor.element_size() * (len(every) - 1)
            return gather(every, tensor, group=group, **options)

        def counted(out: Any, tensor: Any, outs: Any, ins: Any, **options: Any) -> Any:
            rank = distributed.get_rank(options["group"])
            self.sent += (tensor.numel() - ins[rank]) * tensor.element_size()
            return exchange(out, tensor, outs, ins, **options)

        distributed.all_gather = counted_gather
        distributed.all_to_all_single = counted  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        distributed.all_gather, distributed.all_to_all_single = self._plain  # type: ignore[assignment]


def steep(**config: Any) -> Any:
    """Return an MPT whose flattest slope is 1/4."""
    return make_model("mpt", 4, attn_config={"alibi": True, "alibi_bias_max": 2}, **config)


def negligible_ranks(rank: int, size: int) -> dict[str, list[Any]]:
    """Return bytes sent per token and layer, divided by those without skipping, and errors."""
    group, found = distributed.group.WORLD, {}
    ids = batch(600)["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, :200] = 0
    windowed = {"window": 40}
    cases: dict[str, tuple[Any, dict[str, Any], torch.Tensor | None]] = {
        "far": (steep(), {}, None),
        "padded": (steep(), {}, mask),
        "knee": (steep(), {"scaling": na.Knee(200, 2.0)}, None),
        "by length": (steep(), {"scaling": na.DynamicNTK(1.1, 512, per="query")}, None),
        "window": (make_model("bloom", 8), windowed, None),
        "flat": (make_model("mpt", 8), {}, None),
        "a long key": (steep(), {}, None),
    }
    with torch.no_grad():
        # tokens 7 have keys so long that a rank with one of them must not be negligible
        weights = cases["a long key"][0].transformer.wte.weight
        weights[7] *= 3000.0
    for name, (model, options, padding) in cases.items():
        text = ids.clone()
        text[text == 7] = 8
        if name == "a long key":
            text[:, 440] = 7
            for block in model.transformer.blocks:
                block.norm_1 = torch.nn.Identity()
        plain = {"attention_mask": padding} if padding is not None else {}
        with na.patch(model, **options), torch.inference_mode():
            expected = model(text, **plain).logits[:, -2:]
        runs = []
        for _ in range(2 if name == "far" else 1):
            with na.patch(model, **options, group=group), torch.inference_mode():
                cache = na.ShardedCache(group)
                before = {} if padding is None else {"attention_mask": padding[:, :-2]}
                model(text[:, :-2], **{CACHE: cache}, **before)
                logits, sent = [], 0
                for at in (598, 599):
                    until = {} if padding is None else {"attention_mask": padding[:, : at + 1]}
                    with Wire() as wire:
                        step = model(text[:, at : at + 1], **{CACHE: cache}, **until)
                    logits.append(step.logits)
                    sent += wire.sent
                runs.append(torch.cat(logits, 1))
        heads = model.config.num_attention_heads
        result = 4 * heads * (16 + 1) * len(text) * (size - 1)
        layers = model.config.num_hidden_layers
        error = float((runs[0] - expected).abs().max() / expected.abs().max())
        same = bool((runs[0] == runs[-1]).all())
        found[name] = [sent / (2 * layers * result), error, same]
    return found


#: Name, family, the layout, and keywords of `patch`.
PASSES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "BLOOM": ("bloom", {}, {}),
    "BLOOM, per text": ("bloom", {}, {"scaling": na.DynamicNTK(2.0, 64)}),
    "MPT": ("mpt", {}, {"scaling": na.NTK(4.0)}),
    "Falcon": ("falcon", {}, {"scaling": na.DynamicNTK(2.0, 64, per="query")}),
    "Falcon, heads of keys": ("falcon, heads of keys", {}, {"scaling": na.Knee(100, 8.0)}),
    "Falcon, groups": ("falcon, new decoder", {}, {"log_n": na.LogN(64, 0.5)}),
    "zigzag": ("bloom", ZIGZAG, {"scaling": na.NTK(4.0)}),
    "zigzag, per query": (
        "mpt",
        ZIGZAG,
        {"scaling": na.DynamicNTK(2.0, 64, per="query"), "log_n": na.LogN(64, 0.5, biased=True)},
    ),
    "zigzag, per text": ("falcon", ZIGZAG, {"scaling": na.DynamicNTK(2.0, 64)}),
    "zigzag, window": ("bloom", ZIGZAG, {"window": 70, "scaling": na.Knee(30, 4.0)}),
}


def passes(rank: int, size: int) -> dict[str, list[float]]:
    return {
        name: differences(*(make_model(family) for _ in range(2)), batch(),
                          distributed.group.WORLD, layout=layout, **options)
        for name, (family, layout, options) in PASSES.items()
    }  # fmt: skip


def generation(rank: int, size: int) -> dict[str, bool]:
    """Return whether all ranks generate the tokens that one process generates, by family."""
    group, found = distributed.group.WORLD, {}
    text = {name: x for name, x in batch().items() if name != "labels"}
    for name in ("mpt", "falcon", "falcon, new decoder"):
        model = make_model(name)
        options = {"max_new_tokens": 4, "do_sample": False, "num_beams": 2, "pad_token_id": 0}
        with na.patch(model, na.NTK(4.0)):
            expected = model.generate(**text, **options)
        with na.patch(model, na.NTK(4.0), group=group):
            cache = na.ShardedCache(group)
            result = model.generate(**text, **options, **{CACHE: cache})
        found[name] = torch.equal(result, expected)
    return found


def own_loss(rank: int, size: int) -> None:
    """Assert that the group's loss function replaces the user's, which comes back."""
    group, model, ids = distributed.group.WORLD, make_model("bloom"), batch()["input_ids"][:1]
    loss = model.loss_function
    model.loss_function = own = lambda *_, **__: torch.tensor(7.0)
    with na.patch(model):
        assert model(ids, labels=ids).loss == 7.0
        with na.patch(model, group=group):
            assert model.loss_function is not own
    assert model.loss_function is own
    with na.patch(model.base_model, group=group):
        assert model.loss_function is not own
    assert model.loss_function is own
    model.loss_function = loss
    # the patch is gone: labels are shifted by transformers again
    expected = torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:])
    torch.testing.assert_close(model(ids, labels=ids).loss, expected)


def on_a_mesh(rank: int, size: int, folder: Path) -> dict[str, list[float]]:
    """Return errors of models whose heads and whose texts are divided, on two by two processes."""
    from torch.distributed.device_mesh import init_device_mesh
    from transformers.distributed import DistributedConfig

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("sequence", "tp"))
    group, found = mesh["sequence"].get_group(), {}
    load = transformers.AutoModelForCausalLM.from_pretrained
    for name, averaged_by in DIVIDED.items():
        whole = load(folder / name)
        plan = DistributedConfig(tp_plan=na.tp_plan(whole.config), tp_size=2, **{averaged_by: 2})
        model = load(folder / name, distributed_config=plan)
        options: dict[str, Any] = {"scaling": na.NTK(4.0), "averaged": True}
        found[name] = differences(whole, model, batch(), group, **options)
        ids = batch()["input_ids"][:1]
        with na.patch(model, na.NTK(4.0), group=group), torch.inference_mode():
            step = model(ids, **{CACHE: na.ShardedCache(group)}).logits
        with na.patch(whole, na.NTK(4.0)), torch.inference_mode():
            expected = whole(ids).logits[:, -1:]
        found[name].append(float((step - expected).abs().max()))
    packed = transformers.AutoConfig.from_pretrained(folder / "mpt")
    plan = DistributedConfig(tp_plan=na.tp_plan(packed), tp_size=2, fsdp_size=2)
    model = load(folder / "mpt", distributed_config=plan)
    with pytest.raises(ValueError, match="model must be divided by tensor parallelism or by FSDP"):
        na.patch(model, group=group)
    return found


def everything(rank: int, size: int, folder: Path) -> dict[str, Any]:
    own_loss(rank, size)
    work = negligible_ranks, passes, generation
    found = {function.__name__: function(rank, size) for function in work}
    if Version(transformers.__version__) >= Version("5.23"):
        found["on_a_mesh"] = on_a_mesh(rank, size, folder)
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("models")
    for name in (*DIVIDED, "mpt"):
        make_model(name).save_pretrained(folder / name)
    return run(4, everything, 4, folder)


def test_logits_loss_and_gradients_are_those_of_one_process(results: list[dict[str, Any]]) -> None:
    for found in results:
        for name, errors in found["passes"].items():
            assert_small(errors, name)


def test_generated_tokens_are_those_of_one_process(results: list[dict[str, Any]]) -> None:
    for found in results:
        assert all(found["generation"].values()), found["generation"]


@pytest.mark.needs("transformers >= 5.23", "it had another tensor parallelism")
def test_heads_and_texts_are_divided_together(results: list[dict[str, Any]]) -> None:
    for found in results:
        for name, (*errors, step) in found["on_a_mesh"].items():
            assert_small(errors, name)
            assert step < LOGITS, name


def test_ranks_whose_keys_weigh_nothing_send_nothing(results: list[dict[str, Any]]) -> None:
    for name in results[0]["negligible_ranks"]:
        shares, errors, same = zip(*(x["negligible_ranks"][name] for x in results), strict=True)
        assert all(same), name
        assert max(errors) < 5e-6, name  # three layers of float32 sums
        if name == "flat":
            assert all(abs(x - 1.0) < 0.01 for x in shares)
        elif name == "a long key":
            assert shares[2] > 0.99, shares
        else:
            # the last rank sends its result; flags are a byte each
            assert max(shares[:2]) < 0.02, (name, shares)
            assert sum(shares) < 2.1, (name, shares)

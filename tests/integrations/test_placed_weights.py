"""Patched models whose weights frameworks place, freeze, copy or divide."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn

import ntk_alibi as na
import processes
from ntk_alibi.torch import learned_bias
from table_families import HEADS, model_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

#: Float32 sums through two layers, at states of about 1 (T5: about 5).
CLOSE = {"atol": 2e-5, "rtol": 1e-5}

FAMILIES = ("bloom", "mpt", "falcon", "t5, encoder", "umt5", "mpnet")
families = pytest.mark.parametrize("family", FAMILIES)
forms = pytest.mark.parametrize("form", ["fused", "eager"])

IDS = torch.randint(3, 60, (2, 12), generator=torch.Generator().manual_seed(0))
MASK = torch.ones_like(IDS)
MASK[0, :3] = 0


def small(family: str) -> Any:
    return model_of(family).get_encoder() if family == "umt5" else model_of(family)


def output(model: Any) -> torch.Tensor:
    return model(IDS, attention_mask=MASK)[0][MASK.bool()]


def run(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return output(model)


def loss(model: Any) -> torch.Tensor:
    states = output(model).flatten()
    return (states * torch.linspace(-1, 1, len(states))).sum()


def cpu_offloaded(model: Any, folder: Path) -> Any:
    accelerate = pytest.importorskip("accelerate")
    return accelerate.cpu_offload(model, execution_device=torch.device("cpu"))


def disk_offloaded(model: Any, folder: Path) -> Any:
    accelerate = pytest.importorskip("accelerate")
    accelerate.disk_offload(model, folder / "weights", execution_device=torch.device("cpu"))
    return model


def mapped_to_disk(model: Any, folder: Path) -> Any:
    pytest.importorskip("accelerate")
    model.save_pretrained(folder / "model")
    options = {"device_map": {"": "disk"}, "offload_folder": folder / "offloaded"}
    placed = type(model).from_pretrained(folder / "model", **options).eval()
    return placed


@families
@forms
@pytest.mark.parametrize(
    "place",
    [
        cpu_offloaded,
        disk_offloaded,
        pytest.param(
            mapped_to_disk,
            marks=pytest.mark.needs("transformers >= 5.14", "it leaves a BLOOM without weights"),
        ),
    ],
)
@pytest.mark.parametrize("first", ["placed", "patched"])
def test_offloaded_weights(
    family: str, form: Any, place: Callable[..., Any], first: str, tmp_path: Path
) -> None:
    model = small(family)
    stock = run(model)
    if first == "patched" and place is not mapped_to_disk:
        na.patch(model, attention=form)
        model = place(model, tmp_path)
    else:
        model = place(model, tmp_path)
        na.patch(model, attention=form)
    torch.testing.assert_close(run(model), stock, **CLOSE)
    na.unpatch(model)
    torch.testing.assert_close(run(model), stock, **CLOSE)


def test_an_offloaded_learned_bias(tmp_path: Path) -> None:
    model, bias = small("bloom"), learned_bias.LearnedALiBi(HEADS)
    na.patch(model, bias)
    expected = run(model)
    torch.testing.assert_close(run(cpu_offloaded(model, tmp_path)), expected, **CLOSE)


@families
@pytest.mark.parametrize("first", ["adapted", "patched"])
def test_lora(family: str, first: str) -> None:
    peft = pytest.importorskip("peft")
    targets = {"mpt": ["Wqkv"], "bloom": ["query_key_value"], "falcon": ["query_key_value"]}
    config = peft.LoraConfig(
        target_modules=targets.get(family, ["q", "v"]), init_lora_weights=False
    )

    def adapted(patch: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        torch.manual_seed(1)
        model = small(family)
        if patch and first == "patched":
            na.patch(model)
        model = peft.get_peft_model(model, config).eval()
        if patch and first == "adapted":
            na.patch(model)
        loss(model.base_model.model).backward()
        found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        return run(model.base_model.model), found

    (stock, of_stock), (ours, found) = adapted(False), adapted(True)
    torch.testing.assert_close(ours, stock, **CLOSE)
    assert found.keys() == of_stock.keys()
    assert found
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, of_stock[name], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["bloom", "mpt", "falcon, heads of keys"])
@forms
def test_prefix_tuning_trains_its_prefix(family: str, form: Any) -> None:
    """The model is frozen: of all keys and values the prefix's alone require gradients."""
    peft = pytest.importorskip("peft")
    sizes = {"num_attention_heads": HEADS, "num_layers": 2, "token_dim": 16 * HEADS}
    config = peft.PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM", **sizes)

    def tuned(patch: bool) -> tuple[torch.Tensor, torch.Tensor]:
        model = small(family)
        model.config.use_cache = True
        torch.manual_seed(1)
        tuned = peft.get_peft_model(model, config).eval()
        if patch:
            na.patch(tuned, attention=form)
        logits = tuned(input_ids=IDS, attention_mask=MASK).logits[MASK.bool()]
        logits.square().sum().backward()
        (prefix,) = (p for p in tuned.parameters() if p.requires_grad)
        return logits.detach(), prefix.grad

    (stock, of_stock), (ours, found) = tuned(False), tuned(True)
    torch.testing.assert_close(ours, stock, **CLOSE)
    assert of_stock.abs().max() > 1e-3
    torch.testing.assert_close(found, of_stock, atol=1e-4, rtol=1e-4)


def trained_by(rank: int, way: str, family: str, first: str) -> tuple[torch.Tensor, list[Any]]:
    """Return outputs before a step and after it, of a model that a framework divides or copies."""
    model = small(family)
    if first == "patched":
        na.patch(model)
    if way == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
        for part in reversed([*model.modules()]):  # inner ones first
            if isinstance(part, nn.ModuleList):
                for layer in part:
                    fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if first == "divided":
        na.patch(model)
    whole = nn.parallel.DistributedDataParallel(model) if way == "ddp" else model
    optimizer = torch.optim.SGD(whole.parameters(), lr=1e-3)
    before = run(whole)
    loss(whole).backward()
    optimizer.step()
    return before, run(whole)


def stepped(family: str) -> tuple[torch.Tensor, torch.Tensor]:
    model = small(family)
    before = run(model)
    loss(model).backward()
    torch.optim.SGD(model.parameters(), lr=1e-3).step()
    return before, run(model)


@pytest.mark.slow
@families
@pytest.mark.parametrize(
    ("way", "size", "first"),
    [("fsdp", 1, "divided"), ("fsdp", 2, "divided"), ("fsdp", 2, "patched"), ("ddp", 2, "divided"),
     ("ddp", 2, "patched")],
)  # fmt: skip
def test_weights_that_processes_share(family: str, way: str, size: int, first: str) -> None:
    expected = stepped(family)
    assert (expected[0] - expected[1]).abs().max() > 1e-4
    for found in processes.run(size, trained_by, way, family, first):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)

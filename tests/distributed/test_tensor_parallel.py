"""Models whose heads are divided among ranks by transformers: logits, gradients and tokens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import distributed
from transformers import BloomConfig, FalconConfig, MptConfig

import ntk_alibi as na
from model_runs import drop_weights
from ntk_alibi.models.loading import nano_bloom_path
from processes import run

pytestmark = pytest.mark.needs("transformers >= 5.23", "it had another tensor parallelism")

FALCON: dict[str, Any] = {
    "vocab_size": 64, "num_hidden_layers": 2, "alibi": True, "bias": True, "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}  # fmt: skip
CONFIGS: dict[str, Any] = {
    "BLOOM, 6 heads": BloomConfig(vocab_size=64, hidden_size=48, n_layer=2, n_head=6),
    "MPT": MptConfig(
        vocab_size=64, d_model=64, n_layers=2, n_heads=4, max_seq_len=64,
        attn_config={"alibi": True, "alibi_bias_max": 6},
    ),
    "Falcon": FalconConfig(
        **FALCON, hidden_size=64, num_attention_heads=4, multi_query=False,
        new_decoder_architecture=False,
    ),
    "Falcon, one head of keys": FalconConfig(
        **FALCON, hidden_size=64, num_attention_heads=4, multi_query=True,
        new_decoder_architecture=False,
    ),
    "Falcon, groups": FalconConfig(
        **FALCON, hidden_size=96, num_attention_heads=6, num_kv_heads=2,
        new_decoder_architecture=True,
    ),
}  # fmt: skip


def options_of(heads: int) -> list[dict[str, Any]]:
    """Return what models of so many heads are patched with, one after the other."""
    strengths = [number / heads for number in range(heads)]
    return [
        {"scaling": na.NTK(4.0)},
        {"scaling": na.DynamicNTK(2.0, 16, per="query"), "log_n": na.LogN(16, strengths)},
        {"scaling": na.Knee(8, 6.0), "log_n": na.LogN(16, 0.5)},
    ]


def stored(folder: Path) -> dict[str, str]:
    """Store random models, and return their folders by name."""
    found = {"nano BLOOM": str(nano_bloom_path())}
    for name, config in CONFIGS.items():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * torch.randn(parameter.shape)
        found[name] = str(folder / name)
        model.save_pretrained(found[name])
    return found


def divided(rank: int, size: int, folders: dict[str, str]) -> dict[str, Any]:
    """Return errors of logits and gradients, and whether generated tokens are equal, by model.

    With the first options, each rank drops the same weights of its heads as the whole model.
    """
    from transformers.distributed import DistributedConfig

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    ids = torch.arange(2 * 40).reshape(2, 40) * 7 % 60 + 4
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    found: dict[str, Any] = {}
    for name, folder in folders.items():
        load = transformers.AutoModelForCausalLM.from_pretrained
        whole = load(folder)
        plan = DistributedConfig(tp_plan=na.tp_plan(whole.config), tp_size=size)
        parts = load(folder, distributed_config=plan)
        drop_weights(whole.modules())
        drop_weights(parts.modules())
        for number, options in enumerate(options_of(whole.config.num_attention_heads)):
            logits, gradients = [], []
            for model in (whole, parts):
                model.train(number == 0).zero_grad(set_to_none=True)
                torch.manual_seed(0)
                with na.patch(model, **options):
                    result = model(ids, attention_mask=mask).logits
                    (result[mask > 0] ** 2).mean().backward()
                logits.append(result.detach()[mask > 0])
                gradients.append(
                    {
                        n: p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
                        for n, p in model.named_parameters()
                    }
                )
            worst = max(
                float((gradients[1][n] - g).norm() / g.norm().clamp(min=1e-6))
                for n, g in gradients[0].items()
            )
            found[f"{name}, {number}"] = float((logits[1] - logits[0]).abs().max()), worst
        tokens = []
        for model in (whole.eval(), parts.eval()):
            with na.patch(model, na.NTK(4.0)):
                options = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False}
                tokens.append(model.generate(ids, **options))
        found[f"{name}, tokens"] = bool(torch.equal(*tokens))
    for options in ({"attention": "eager"}, {"attention": "traceable"}):
        with na.patch(parts, **options), pytest.raises(ValueError, match="under tensor parallel"):
            parts(ids)
    return found


@pytest.mark.needs("torch >= 2.12", "older DTensors do not gather gradients of packed weights")
def test_divided_models_compute_what_whole_ones_do(tmp_path: Path) -> None:
    for found in run(2, divided, 2, stored(tmp_path)):
        for name, result in found.items():
            if name.endswith("tokens"):
                assert result, name
                continue
            logits, gradients = result
            assert logits < 2e-4, name  # logits reach 20
            assert gradients < 1e-4, name


def test_a_plan_is_of_a_known_family() -> None:
    with pytest.raises(ValueError, match=r"of a known family \(BLOOM, Falcon, MPT\), got GPT2"):
        na.tp_plan(transformers.GPT2Config())


#: Families whose heads and rows are divided, and what averages gradients over the rows.
ON_A_MESH = {"BLOOM, 6 heads": "dp_replicate_size", "Falcon": "fsdp_size"}


def on_a_mesh(rank: int, size: int, folders: dict[str, str]) -> dict[str, tuple[float, float]]:
    """Return errors of loss and gradients where two ranks have the heads, and each pair a row."""
    from transformers.distributed import DistributedConfig

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    rows, found = torch.arange(2 * 40).reshape(2, 40) * 7 % 60 + 4, {}
    for name, averaged_by in ON_A_MESH.items():
        load = transformers.AutoModelForCausalLM.from_pretrained
        whole = load(folders[name])
        plan = DistributedConfig(tp_plan=na.tp_plan(whole.config), tp_size=2, **{averaged_by: 2})
        parts, losses = load(folders[name], distributed_config=plan), []
        for model, own in ((whole, rows), (parts, rows[rank // 2 : rank // 2 + 1])):
            model.eval()
            with na.patch(model, na.NTK(4.0)):
                losses.append(model(own, labels=own).loss)
                losses[-1].backward()
        every = [torch.zeros_like(losses[1]) for _ in range(size)]
        distributed.all_gather(every, losses[1].detach())
        worst, exact = 0.0, dict(whole.named_parameters())
        for n, p in parts.named_parameters():
            gradient = p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
            norm = exact[n].grad.norm().clamp(min=1e-6)
            worst = max(worst, float((gradient - exact[n].grad).norm() / norm))
        found[name] = float((torch.stack(every).mean() - losses[0]).detach().abs()), worst
    return found


@pytest.mark.needs("torch >= 2.12", "older DTensors do not gather gradients of packed weights")
def test_heads_and_rows_are_divided_together(tmp_path: Path) -> None:
    for found in run(4, on_a_mesh, 4, stored(tmp_path)):
        for name, (loss, gradients) in found.items():
            assert loss < 1e-5, name
            assert gradients < 1e-4, name

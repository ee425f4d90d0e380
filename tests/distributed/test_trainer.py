"""transformers' Trainer, with accelerate and DDP, on texts that two processes share."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import distributed
from torch.utils.data import DataLoader

import ntk_alibi as na
from ntk_alibi.torch import shard
from processes import run
from small_models import VOCABULARY, make_model

pytest.importorskip("accelerate")

#: A step has so many backward passes, of two texts each.
ACCUMULATED, STEPS, RATE = 2, 2, 0.1


def texts() -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    ids = torch.randint(1, VOCABULARY, (2 * ACCUMULATED * STEPS, 200), generator=rng)
    return list(ids)


def joined(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    ids = torch.stack(rows)
    return {"input_ids": ids, "labels": ids}


class OnParts(transformers.Trainer):
    """Trains on this rank's parts of the same texts on all ranks."""

    loss_is_scaled_for_ga = False

    def get_train_dataloader(self) -> Any:
        group = distributed.group.WORLD
        return DataLoader(
            self.train_dataset, batch_size=2, collate_fn=lambda rows: shard(joined(rows), group)
        )


class OnPartsWithLoss(OnParts):
    """Uses the model's loss."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: Any = False, **_: Any) -> Any:
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


def by_hand() -> tuple[Any, list[float]]:
    """Return a model that one process trained, and its losses."""
    model, losses, rows = make_model("bloom"), [], texts()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with na.patch(model, na.NTK(4.0)):
        for _ in range(STEPS):
            optimizer.zero_grad()
            parts = [model(**joined([rows.pop(0), rows.pop(0)])).loss for _ in range(ACCUMULATED)]
            loss = torch.stack(parts).mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return model, losses


def trained(rank: int, folder: Path, port: int) -> dict[str, Any]:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({x: str(y) for x, y in names.items()}, MASTER_ADDR="127.0.0.1")
    transformers.logging.set_verbosity_error()
    model = make_model("bloom")
    start = {name: x.detach().clone() for name, x in model.named_parameters()}
    arguments = transformers.TrainingArguments(
        str(folder / str(rank)), use_cpu=True, gradient_accumulation_steps=ACCUMULATED,
        max_steps=STEPS, learning_rate=RATE, optim="sgd", lr_scheduler_type="constant",
        max_grad_norm=0.0, logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    found: dict[str, Any] = {}
    with na.patch(model, na.NTK(4.0), group=distributed.group.WORLD):
        with pytest.raises(ValueError, match="num_items_in_batch must be None in a model patched"):
            OnParts(model, arguments, train_dataset=texts()).train()
        trainer = OnPartsWithLoss(model, arguments, train_dataset=texts())
        trainer.train()
    found["wrapped"] = type(trainer.model_wrapped).__name__
    expected, losses = by_hand()
    logged = [float(x["loss"]) for x in trainer.state.log_history if "loss" in x]
    found["losses"] = [abs(x - y) for x, y in zip(logged, losses, strict=True)]
    found["steps"] = max(
        float((x - y).norm() / (start[name] - y).norm())
        for (name, x), y in zip(model.named_parameters(), expected.parameters(), strict=True)
    )
    return found


@pytest.mark.slow
def test_the_trainer_steps_as_one_process_does(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for found in run(2, trained, tmp_path, port):
        assert found["wrapped"] == "DistributedDataParallel"
        # the mean of all ranks, in float32
        assert max(found["losses"]) < 1e-5
        # steps are 1e-3 of the weights, which are rounded to 6e-8
        assert found["steps"] < 1e-3

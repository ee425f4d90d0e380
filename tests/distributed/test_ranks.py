"""Devices from which tensors are sent, by the backends of a group."""

from __future__ import annotations

import pytest
import torch

from ntk_alibi.distributed.ranks import supported_device


@pytest.mark.parametrize(
    ("config", "device", "expected"),
    [
        ("cpu:gloo,cuda:gloo", "cpu", "cpu"),
        ("cpu:gloo,cuda:nccl", "cpu", "cpu"),
        ("cpu:gloo,cuda:nccl", "cuda:1", "cuda:1"),
        ("cuda:nccl", "cuda:1", "cuda:1"),
        ("cuda:nccl", "cpu", "cuda:3"),
        ("cpu:mpi", "cuda:1", "cpu"),
    ],
)
def test_tensors_are_sent_from_a_device_that_the_group_supports(
    config: str, device: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 3)
    assert supported_device(config, torch.device(device)) == torch.device(expected)

"""Patches with log-n factors, and with scalings of some layers."""

from __future__ import annotations

import torch

import ntk_alibi as na


def test_names_and_dicts_are_scalings(models: dict, ids: torch.Tensor) -> None:
    model = models["bloom"]
    length = model.config.seq_length if hasattr(model.config, "seq_length") else 2048
    for given, meant in (
        ("ntk:4", {"method": na.NTK(4.0)}),
        ("original", {}),
        ("flat:8", {"method": na.FlatHeads(8.0)}),
        ("dynamic-ntk", {"method": na.DynamicNTK(2.0, length)}),
        ("original:logn=0.5", {"log_n": na.LogN(length, 0.5)}),
        ("ntk:4:logn=1", {"method": na.NTK(4.0), "log_n": na.LogN(length)}),
        (na.NTK(4.0).to_config(), {"method": na.NTK(4.0)}),
        ({"alibi_type": "default"}, {}),
    ):
        with na.patch(model, given) as handle:
            assert handle.scaling == meant.get("method")
            assert handle.log_n == meant.get("log_n")

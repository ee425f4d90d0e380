"""The examples in plain torch do what they say; examples/ has others, which other tests run."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import pytest
import torch

import ntk_alibi as na
from repository import ROOT


@pytest.fixture(scope="module")
def stretching() -> Any:
    spec = importlib.util.spec_from_file_location("stretching", ROOT / "examples/stretching.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_slopes_are_ours(stretching: Any) -> None:
    for heads in (2, 4, 8, 16):
        ours = torch.from_numpy(na.alibi_slopes(heads))
        torch.testing.assert_close(stretching.alibi_slopes(heads), ours)
        ours = torch.from_numpy(na.alibi_slopes(heads, na.NTK(6.0)))
        torch.testing.assert_close(stretching.ntk_slopes(heads, 6.0), ours)


@pytest.mark.slow
def test_its_model_fails_beyond_its_training_length_and_is_stretched(
    stretching: Any, one_thread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    stretching.main()
    *_, far = capsys.readouterr().out.splitlines()
    times, original, stretched = map(int, re.findall(r"\d+", far))
    assert times == 16
    assert original < 85
    assert stretched > 92

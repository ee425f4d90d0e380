"""Tests of instruction sets and threads, in separate processes where they change global state."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import ntk_alibi as na
from ntk_alibi import _core


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("isa", _core.available_isas())
def test_the_environment_chooses_the_isa(isa: str) -> None:
    done = python("import ntk_alibi as na; print(na.info()['isa'])", NTK_ALIBI_ISA=isa)
    assert done.stdout.strip() == isa, done.stderr


def test_the_fastest_isa_is_the_default() -> None:
    done = python("import ntk_alibi as na; print(na.info()['isa'])", NTK_ALIBI_ISA="")
    isas = _core.available_isas()
    if isas[-1] == "avx512_bf16" and _core.cpu_vendor() == "intel":
        isas.pop()  # its dot products have half the speed of multiply-adds there
    assert done.stdout.strip() == isas[-1]


def test_set_num_threads() -> None:
    default = na.info()["threads"]
    na.set_num_threads(5)
    assert na.info()["threads"] == 5
    na.set_num_threads(0)
    assert na.info()["threads"] == default
    with pytest.raises(ValueError, match="num_threads must be between 0 and 4096, got -1"):
        na.set_num_threads(-1)
    with pytest.raises(TypeError, match=r"num_threads must be an integer, got 1\.5"):
        na.set_num_threads(1.5)


def test_info_names_what_is_there() -> None:
    info = na.info()
    assert info["version"] == na.__version__
    assert info["isa"] in info["isas"]
    assert info["packages"]["torch"].startswith("2.")

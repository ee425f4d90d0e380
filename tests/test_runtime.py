"""Tests of instruction sets and threads, in separate processes where they change global state."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import ntk_alibi as na
from ntk_alibi import _core
from repository import ROOT


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


@pytest.mark.parametrize("isa", ["mmx", "AVX2", "sve2"])
def test_an_unknown_isa_is_an_error_that_lists_the_choices(isa: str) -> None:
    done = python("import ntk_alibi", NTK_ALIBI_ISA=isa)
    assert done.returncode != 0
    choices = ", ".join(_core.available_isas())
    assert f"NTK_ALIBI_ISA must be one of {choices} on this machine, got '{isa}'" in done.stderr


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


def test_several_python_threads_at_once() -> None:
    expected = na.ALiBi(8).tensor(300, 700)
    wrong = []

    def work() -> None:
        for _ in range(20):
            if not np.array_equal(na.ALiBi(8).tensor(300, 700), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_info_names_what_is_there() -> None:
    info = na.info()
    assert info["version"] == na.__version__
    assert info["isa"] in info["isas"]
    assert info["packages"]["torch"].startswith("2.")


def test_what_is_said_of_gpus_stands_in_their_page() -> None:
    sentence = na.info()["gpu"]
    assert sentence in (ROOT / "docs/versions.md").read_text("utf-8")

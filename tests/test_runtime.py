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

#: A call with enough rows and elements to use several threads.
BIG = "na.ALiBi(8).tensor(512, 512)"


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


def test_the_best_isa_is_the_default() -> None:
    done = python("import ntk_alibi as na; print(na.info()['isa'])", NTK_ALIBI_ISA="")
    assert done.stdout.strip() == _core.available_isas()[-1]


def test_omp_num_threads_is_honoured() -> None:
    code = "import ntk_alibi as na; print(na.info()['threads'])"
    assert python(code, OMP_NUM_THREADS="3").stdout.strip() == "3"


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("first", ["", "import torch; torch.ones(10**6).sum()"])
def test_a_forked_child_works_on_one_thread_and_says_so(first: str) -> None:
    code = f"""
import os
{first}
import ntk_alibi as na
na.set_num_threads(4)
expected = {BIG}.tobytes()
child = os.fork()
if child == 0:
    same = {BIG}.tobytes() == expected and na.info()["threads"] == 1
    try:
        na.set_num_threads(2)
    except RuntimeError as error:
        os._exit(0 if same and "fork" in str(error) else 1)
    os._exit(2)
assert os.waitpid(child, 0)[1] == 0
assert na.info()["threads"] == 4 and {BIG}.tobytes() == expected
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


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
    assert sentence in (ROOT / "docs/gpu.md").read_text()

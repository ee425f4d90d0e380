"""The runner of transformers' tests on patched models; here the tests in its place are our own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from repository import ROOT

pytestmark = pytest.mark.slow  # of a program beside the package

TESTS = """
import torch
import transformers


def model():
    sizes = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.FalconModel(transformers.FalconConfig(**sizes)).eval()


def test_alibi():
    assert model().config.alibi


def test_what_patched_models_do_not_do():
    families = transformers.models.falcon.modeling_falcon
    assert type(model().h[0].self_attention) is families.FalconAttention


def test_the_entry():
    assert not hasattr(model().config, "ntk_alibi")


def test_what_no_model_does():
    assert model()(torch.zeros((1, 3), dtype=torch.long)) is None
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "peers", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "tests/by_hand")},
        capture_output=True,
        text=True,
    )


@pytest.mark.long
def test_the_table_and_the_tests_that_only_patched_models_fail(tmp_path: Path) -> None:
    folder = tmp_path / "tests/models/falcon"
    folder.mkdir(parents=True)
    (folder / "test_modeling_falcon.py").write_text(TESTS)
    (tmp_path / "setup.py").write_text('setup(version="1.2.3")')
    places = "--transformers", str(tmp_path), "--results", str(tmp_path)
    done = run(*places, "--families", "Falcon")
    assert done.returncode == 1, done.stderr
    assert "tests of 1.2.3" in done.stdout
    for way, row in (("stock", "3 | 1 | 0"), ("patched", "1 | 3 | 0")):
        assert f"| Falcon | {way} | {row} |" in done.stdout
    listed = done.stdout.split("fail, but pass stock:\n")[1].splitlines()
    names = ("test_what_patched_models_do_not_do", "test_the_entry")
    ours = {f"patched: test_modeling_falcon::{name}" for name in names}
    assert set(listed) == ours
    assert len(listed) == len(ours)


@pytest.mark.parametrize(
    "tests", ["import nothing_of_that_name", "", "import pytest\n\npytest.exit('no model')"]
)
def test_tests_that_pytest_cannot_collect_are_no_success(tmp_path: Path, tests: str) -> None:
    folder = tmp_path / "tests/models/mpt"
    folder.mkdir(parents=True)
    (folder / "test_modeling_mpt.py").write_text(tests)
    (tmp_path / "setup.py").write_text('setup(version="1.2.3")')
    done = run("--transformers", str(tmp_path), "--results", str(tmp_path), "--families", "MPT")
    assert done.returncode == 1, done.stdout
    assert "pytest did not run tests/models/mpt/test_modeling_mpt.py stock: see" in done.stderr
    assert "all pass as stock" not in done.stdout

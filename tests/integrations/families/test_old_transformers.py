"""Families of remote code on versions of transformers 4, where most of their users are.

4.36 is of the time of that code, 4.57 the last of 4. The other tests cover transformers 5;
test_versions.py has the families of transformers itself.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from repository import make_environment, run_tests

pytestmark = [pytest.mark.slow, pytest.mark.long]

FOLDER = "tests/integrations/families"
NAMES = ("test_bert", "test_baichuan", "test_remote_loading")
TESTS = tuple(f"{FOLDER}/{name}.py" for name in NAMES)

#: Versions, and what they need in front of the packages of this environment.
VERSIONS = {
    "4.36.2": ("tokenizers<0.19", "huggingface-hub<1"),
    "4.57.6": ("tokenizers<0.23", "huggingface-hub<1"),
}

#: transformers 4.36 calls what torch 2.13 has under another name, which warns.
IGNORED = ("-W", "ignore::FutureWarning")


@pytest.mark.parametrize("version", VERSIONS)
def test_remote_code_on_transformers(version: str, tmp_path: Path) -> None:
    python = make_environment(tmp_path / "venv", f"transformers=={version}", *VERSIONS[version])
    asked = "import transformers; print(transformers.__version__)"
    found = subprocess.run([python, "-W", "ignore", "-c", asked], capture_output=True, text=True)
    assert found.stdout.strip() == version, found.stderr
    run_tests(python, *IGNORED, *TESTS)

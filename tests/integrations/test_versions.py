"""The patch on other versions of transformers: the oldest, and those before a change."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from repository import make_environment, run_tests

pytestmark = [pytest.mark.slow, pytest.mark.long]

FOLDER = "tests/integrations"
BLOOM = f"{FOLDER}/families/test_bloom.py"
CACHES = (
    f"{FOLDER}/test_cache_argument.py",
    f"{FOLDER}/test_packed_segments.py::test_continuous_batching_gives_the_tokens_of_generate",
    f"{FOLDER}/test_packed_segments.py::test_continuous_batching_says_why_it_fails",
)

#: Versions, and what of the quick tests runs on them: all on the oldest, BLOOM's tests on 5.18,
#: where generate() passes a mask of ones on, and on 5.20, where it drops it and the model builds
#: one. From 5.21 on the model builds the bias inline instead. On 5.23, the last one whose models
#: take caches as past_key_values, the tests of all families run, and of caches.
VERSIONS = {
    "5.4.0": (FOLDER,),
    "5.18.0": (BLOOM,),
    "5.20.0": (BLOOM,),
    "5.23.0": (BLOOM, f"{FOLDER}/test_families.py", *CACHES),
}

#: What a version needs in front of the packages of this environment.
NEEDS = {"5.4.0": ("tokenizers<=0.23.0", "huggingface-hub<2")}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_patches_on_transformers(version: str, tmp_path: Path) -> None:
    """Run the quick tests, but those that need a later one: grids run on the newest version."""
    wanted = f"transformers=={version}", *NEEDS.get(version, ())
    python = make_environment(tmp_path / "venv", *wanted)
    command = [python, "-c", "import transformers; print(transformers.__version__)"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.stdout.strip() == version, found.stderr
    run_tests(python, *VERSIONS[version])

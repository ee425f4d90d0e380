"""The patch on other versions of transformers: the oldest, and those before a change.

`make versions` runs all quick tests on more of them, which are named in NTK_ALIBI_VERSIONS.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path

import pytest
from packaging.version import Version

from repository import make_environment, run_tests

pytestmark = [pytest.mark.slow, pytest.mark.long]

FOLDER = "tests/integrations"
BLOOM = f"{FOLDER}/families/test_bloom.py"
CACHES = (f"{FOLDER}/test_cache_argument.py",)

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

if given := os.environ.get("NTK_ALIBI_VERSIONS"):
    VERSIONS = dict.fromkeys(given.split(), (FOLDER,))

#: What versions before these need in front of the packages of this environment.
NEEDS = {
    "5.16": ("tokenizers<=0.23.0",),
    "5.18": ("huggingface-hub<2", "httpx<1", "httpcore<2", "certifi"),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_patches_on_transformers(version: str, tmp_path: Path) -> None:
    """Run the quick tests, but those that need a later one: grids run on the newest version."""
    needs = [x for before, x in NEEDS.items() if Version(version) < Version(before)]
    wanted = f"transformers=={version}", *itertools.chain(*needs)
    python = make_environment(tmp_path / "venv", *wanted)
    command = [python, "-c", "import transformers; print(transformers.__version__)"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.stdout.strip() == version, found.stderr
    run_tests(python, *VERSIONS[version])

"""The patch on other versions of transformers: the oldest, and those that changed BLOOM."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from repository import ROOT

FOLDER = "tests/integrations"
FAMILIES = (f"{FOLDER}/test_families.py", f"{FOLDER}/families/test_bloom.py")

#: Versions, and what of the quick tests runs on them: all on the oldest, those of the families on
#: 5.18, where generate() passes a mask of ones on, and on 5.20, where it drops it and the model
#: builds one. From 5.21 on, which the other tests cover, the model builds the bias inline instead.
VERSIONS = {"5.4.0": (FOLDER,), "5.18.0": FAMILIES, "5.20.0": FAMILIES}


def environment(folder: Path, version: str) -> Path:
    """Make an environment of a version and the packages of this one; return its interpreter."""
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    (packages,) = folder.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages()]
    (packages / "outer.pth").write_text("".join(lines))
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q"]
    done = subprocess.run(
        [*install, "--no-compile", f"transformers=={version}"], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"pip cannot install transformers {version} here: {done.stderr[-200:]}")
    return python


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_the_patches_on_transformers(version: str, tmp_path: Path) -> None:
    """Run the tests with each value of each parameter: their grids run on the newest version."""
    python = environment(tmp_path / "venv", version)
    found = subprocess.run(
        [python, "-c", "import transformers; print(transformers.__version__)"],
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == version, found.stderr
    tests = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [
            *(*tests, "-p", "each_value_once", "-m", "not slow", *VERSIONS[version]),
            f"--ignore={FOLDER}/test_versions.py",
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "tests/shared")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]

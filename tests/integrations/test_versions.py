"""The patch on other versions of transformers: the oldest, and those that changed BLOOM."""

from __future__ import annotations

import os
import site
import subprocess
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


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_the_patches_on_transformers(version: str, tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    command = [python, "-c", "import site; print(site.getsitepackages()[0])"]
    packages = Path(subprocess.run(command, capture_output=True, text=True).stdout.strip())
    lines = [f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages()]
    (packages / "outer.pth").write_text("".join(lines))
    install = [python, "-m", "pip", "install", "-q", f"transformers=={version}"]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"pip cannot install transformers {version} here: {done.stderr[-200:]}")
    found = subprocess.run(
        [python, "-c", "import transformers; print(transformers.__version__)"],
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == version, found.stderr
    tests = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [
            *tests,
            *("-m", "not slow", *VERSIONS[version], f"--ignore={FOLDER}/test_versions.py"),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]

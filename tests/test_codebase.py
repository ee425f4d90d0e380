"""Checks of the structure: imports between layers, sizes of files, and cost of importing."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

import ntk_alibi as na
from repository import ROOT

PACKAGE = ROOT / "src/ntk_alibi"

#: Layers from the bottom up: files and folders of the package, a folder's own `__init__` by that
#: name. A module imports from its own layer and from lower ones only.
PYTHON_LAYERS = [
    ["_core", "_installed"],
    ["_arrays", "_backends", "_torch_state", "_checks", "_names"],
    ["_files", "_runtime", "_repr_png"],
    ["masks", "scaling", "reference"],
    ["biases", "methods", "positions", "precision", "fused.tensors.merging"],
    ["fused"],
    ["engines.vllm"],
    ["fused.tensors"],
    ["fused.attention"],  # which hands tensors to fused.tensors
    ["fused.__init__", "inspection"],
    ["torch"],
    ["integrations"],
    ["models"],
    ["engines"],
    ["evaluation", "plots"],
    ["cli", "__main__"],
]

#: The folders that a C++ folder may include, besides the standard library.
CPP_ARROWS = {
    "kernels": {"kernels"},
    "core": {"core", "kernels"},
    "include/ntk_alibi": set(),
    "api": {"core", "ntk_alibi"},
    "bindings": {"bindings", "core", "kernels", "pybind11"},
    "tests": {"core", "kernels", "ntk_alibi"},
}

#: Public names that stand for no formula.
WITHOUT_FORMULA = {
    "Scaling", "__version__", "export", "info", "patched",
    "reference", "set_num_threads", "unpatch",
}  # fmt: skip

#: Lines of a file at most.
MOST_LINES = 400

#: Paths of modules by their names, without the package's own `__init__`, which gathers them.
MODULES = {
    ".".join(["ntk_alibi", *path.relative_to(PACKAGE).with_suffix("").parts]): path
    for path in PACKAGE.rglob("*.py")
    if path.parent != PACKAGE or path.stem != "__init__"
}
MODULES = {name.removesuffix(".__init__"): path for name, path in MODULES.items()}


def short(module: str) -> str:
    return module.removeprefix("ntk_alibi.")


def layer(module: str) -> int:
    """Return the layer of a module, by its name or by the innermost folder with a layer."""
    known = {name: i for i, names in enumerate(PYTHON_LAYERS) for name in names}
    parts = short(module).split(".")
    if MODULES[module].stem == "__init__":
        parts.append("__init__")
    places = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next(known[place] for place in places if place in known)


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


@functools.cache
def imports(path: Path) -> set[str]:
    """Return the modules of this package that a file imports, at any depth and however written."""
    imported = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Call) and names_in(node.func) & {"import_module"}:
            imported |= {x.value for x in node.args if isinstance(x, ast.Constant)}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {name if name in MODULES else node.module or "" for name in names}
    return imported & MODULES.keys()


def is_theory(module: str) -> bool:
    """Return whether a module defines biases or scalings."""
    return short(module).split(".")[0] in ("biases", "scaling")


def names_in(node: ast.AST) -> set[str]:
    """Return the names and attributes of an expression."""
    walked = list(ast.walk(node))
    names = {part.id for part in walked if isinstance(part, ast.Name)}
    return names | {part.attr for part in walked if isinstance(part, ast.Attribute)}


def asked_classes(node: ast.AST) -> set[str]:
    """Return the classes that isinstance, issubclass or a match pattern asks for."""
    if isinstance(node, ast.MatchClass):
        return names_in(node.cls)
    if isinstance(node, ast.Call) and names_in(node.func) & {"isinstance", "issubclass"}:
        return names_in(node.args[1])
    return set()


def test_python_arrows_point_down() -> None:
    wrong = [
        f"{name} must not import {module}"
        for name, path in MODULES.items()
        for module in imports(path)
        if layer(module) > layer(name)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_package_imports_no_program_of_the_checkout() -> None:
    for path in MODULES.values():
        text = path.read_text()
        assert not re.search(r"^\s*(from|import) (studies|benchmarks|fuzz|peers)\b", text, re.M), (
            path
        )


def test_studies_use_of_the_private_modules_those_of_errors_only() -> None:
    for path in (ROOT / "studies").rglob("*.py"):
        modules = {short(module) for module in imports(path)}
        private = {module for module in modules if re.search(r"(^|\.)_", module)}
        assert private <= {"_checks", "_files"}, f"{path} imports {private}"


def test_no_python_modules_import_each_other_in_a_circle() -> None:
    """This holds within a layer, too, and for imports inside of functions."""
    arrows = {name: imports(path) for name, path in MODULES.items()}
    TopologicalSorter(arrows).prepare()  # raises CycleError, which names the circle


def test_no_code_asks_which_bias_or_scaling_it_got() -> None:
    """Such code belongs to the object, so that a new class needs no change elsewhere."""
    classes = {
        node.name
        for module, path in MODULES.items()
        if is_theory(module)
        for node in nodes(path)
        if isinstance(node, ast.ClassDef)
    }
    assert {"ALiBi", "BiasObject", "DistanceBias", "KernelBias", "NTK", "Scaling"} <= classes
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} asks for {', '.join(sorted(asked))}"
        for module, path in MODULES.items()
        if not is_theory(module)
        for node in nodes(path)
        if (asked := asked_classes(node) & classes) and isinstance(node, ast.expr | ast.pattern)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_file_is_long() -> None:
    lengths = {
        path.relative_to(ROOT): len(path.read_text().splitlines())
        for folder in ("src", "tests", "benchmarks", "cpp", "fuzz", "studies")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".pyi", ".cpp", ".h")
    }
    assert not {str(path): n for path, n in lengths.items() if n > MOST_LINES}


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
        "names = ('torch', 'transformers', 'lm_eval', 'matplotlib', 'pandas', 'ml_dtypes');"
        "print([m for m in names if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.needs("torch >= 2.12", "before, what attends is marked for it")
def test_autograd_needs_no_compiler_of_torch() -> None:
    """It takes seconds to import, and what runs on one process does not compile."""
    code = (
        "import sys, torch, ntk_alibi.fused.tensors.operator; print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_without_optional_packages_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    for name in ("torch", "lm_eval"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('No module named {name}')")
    done = subprocess.run(
        [sys.executable, "-m", "ntk_alibi", "eval"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert 'pip install "ntk-alibi[eval]"' in done.stderr
    assert "Traceback" not in done.stderr


#: Names that need a package, and the extra that brings all that they need.
NEEDS = {
    "AlibiAttention": "torch", "patch": "transformers", "export": "transformers",
    "GrowingCache": "transformers", "models.load()": "transformers",
}  # fmt: skip


def test_without_torch_a_lazy_name_says_what_brings_all_it_needs() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'transformers')))\n"
        "import ntk_alibi as na, ntk_alibi.models\n"
        f"for code in {[f'na.{name}' for name in NEEDS] + ['import ntk_alibi.integrations']}:\n"
        "    try: exec(code)\n"
        "    except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    *lines, integrations = done.stdout.splitlines()
    for (name, extra), line in zip(NEEDS.items(), lines, strict=True):
        last = name.strip("()").split(".")[-1]
        assert f'{last} needs torch: pip install "ntk-alibi[{extra}]"' in line
    assert 'ntk_alibi.integrations needs torch: pip install "ntk-alibi[torch]"' in integrations


@pytest.mark.slow
@pytest.mark.parametrize(
    "package",
    "IPython argcomplete gguf jieba lm_eval nbformat nltk onnx onnxruntime onnxscript openvino "
    "pytest_examples scipy sphinx sqlitedict xllamacpp".split(),
)
def test_all_packages_of_the_extra_test_all_are_there(package: str) -> None:
    """Where one is missing, tests would be skipped in silence."""
    assert find_spec(package) is not None


def test_every_file_has_the_same_version() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{na.__version__}"' in pyproject
    assert f"## [{na.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {na.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_scaling_and_public_function_is_in_the_formulas() -> None:
    formulas = (ROOT / "docs/formulas.md").read_text()
    for name in na.__all__:
        if name not in WITHOUT_FORMULA:
            assert f"`{name}" in formulas or f"`na.{name}" in formulas, name

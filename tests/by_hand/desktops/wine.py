"""A plugin of pytest: the complex exponentials that Wine 8 lacks, and files without quick tests.

NumPy's and torch's exponentials ask the C library, whose `cexp` ends the process there.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import ml_dtypes  # noqa: F401  # before: it asks NumPy for its functions
import numpy as np
import pytest
import torch


def _replace(module: ModuleType) -> None:
    real = module.exp

    def exp(x: Any, *arguments: Any, **options: Any) -> Any:
        if not module.is_complex(x) if module is torch else not np.iscomplexobj(x):
            return real(x, *arguments, **options)
        return real(x.real) * (module.cos(x.imag) + 1j * module.sin(x.imag))

    module.exp = exp


_replace(np)
_replace(torch)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a file without a quick test pass.

    pytest's status 5 would say so, but is also what Wine makes of an access violation.
    """
    if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK

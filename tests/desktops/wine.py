"""A plugin of pytest: the complex exponentials that Wine 8 lacks.

NumPy's and torch's ask the C library, whose `cexp` ends the process there.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import ml_dtypes  # noqa: F401  # before: it asks NumPy for its functions
import numpy as np
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

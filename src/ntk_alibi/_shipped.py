"""Data that ship with the package, or apart from it.

A build from source holds its data. Wheels for PyPI leave them to the package ntk-alibi-models, so
that slopes, biases and attention come without megabytes of a model.
"""

from __future__ import annotations

from importlib import import_module, resources
from pathlib import Path

from ntk_alibi import _extras

#: The package that has the data where this one does not.
APART = "ntk_alibi_models"


def shipped(package: str, name: str, what: str) -> Path:
    """Return the path of a file or folder of data.

    Args:
        package: the package that holds it in a build from source.
        name: its name.
        what: words for it, for the error.

    Raises:
        ModuleNotFoundError: neither this package nor ntk-alibi-models has it; the message says what
            to install.
    """
    own = Path(str(resources.files(package) / name))
    if own.exists():
        return own
    with _extras.needed_by(what):
        import_module(APART)
    return Path(str(resources.files(APART) / name))

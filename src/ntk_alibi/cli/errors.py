"""What every command says: a warning or an error is one sentence, and the status conventional."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from ntk_alibi import _installed

#: Exit status for wrong arguments or files, as in argparse.
WRONG = 2

#: Exit status where the reader of the output has gone, as shells report it.
PIPE_CLOSED = 128 + getattr(signal, "SIGPIPE", 13)

#: Codes of errors of a file that cannot grow.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def sentences(name: str, extra: str = "eval") -> Iterator[None]:
    """Print errors that the user can mend as one sentence, without a traceback, and exit.

    They are wrong arguments or files, missing packages, and a lack of memory or disk space. Any
    other exception is a bug of the program and keeps its traceback. Warnings are printed without
    the line of code that they come from.

    Args:
        name: name of the command, for the sentence.
        extra: the pip extra that the command needs.
    """
    python_format, warnings.formatwarning = warnings.formatwarning, _warning
    try:
        yield
        if sys.stdout is not None:  # None if the shell has closed it
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        sys.exit(PIPE_CLOSED)
    except ImportError as error:
        advice = f"; this command needs {_installed.install_line(extra)}"
        _fail(name, f"{error}{'' if 'pip install' in str(error) else advice}")
    except MemoryError as error:
        _fail(name, f"not enough memory: {error}" if str(error) else "not enough memory")
    except OSError as error:
        # An error of a write does not name its file, unless `_files.replacing` has added the name.
        unnamed = error.filename is None and error.errno in FULL
        _fail(name, f"{error}{': standard output or a temporary file' if unnamed else ''}")
    except (ValueError, TypeError) as error:
        _fail(name, str(error))
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; run the same command again to continue")
    finally:
        warnings.formatwarning = python_format


def _warning(message: Warning | str, *_place: Any, **_line: Any) -> str:
    return f"warning: {' '.join(str(message).split())}\n"


def _fail(name: str, message: str) -> None:
    _drop_output()
    print(f"{name}: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(WRONG)


def _drop_output() -> None:
    """Discard output that cannot be written, or Python would try again when it exits."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

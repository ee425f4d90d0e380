"""The end of every command of the package: a sentence for an error, and a conventional status."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Iterator

from ntk_alibi import _installed

#: Status of a command whose arguments or files are wrong, as argparse has it.
WRONG = 2

#: Status of a command whose reader has gone, as shells report it.
PIPE_CLOSED = 128 + getattr(signal, "SIGPIPE", 13)

#: Errors of a file that cannot grow.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def sentences(name: str, extra: str = "eval") -> Iterator[None]:
    """Print an error of the user's as one sentence, without a traceback, and exit.

    These are wrong arguments and files, missing packages, and a lack of memory or of space on the
    disk. Other exceptions are errors of the program and keep their traceback.

    Args:
        name: name of the command, for the sentence.
        extra: the pip extra that the command needs.
    """
    try:
        yield
        if sys.stdout is not None:  # as it is where the shell has closed it
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
        # Errors of writing have no name, but `_files.replacing` gives them one.
        unnamed = error.filename is None and error.errno in FULL
        _fail(name, f"{error}{': standard output or a temporary file' if unnamed else ''}")
    except (ValueError, TypeError) as error:
        _fail(name, str(error))
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; run the same command again to continue")


def _fail(name: str, message: str) -> None:
    _drop_output()
    print(f"{name}: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(WRONG)


def _drop_output() -> None:
    """Drop output that cannot be written, so that Python does not try again when it exits."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

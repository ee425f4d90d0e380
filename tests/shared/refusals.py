"""Commands that end with an error."""

from __future__ import annotations

import re

import pytest

from ntk_alibi.cli import main


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command prints to stderr before it ends with the status of wrong arguments."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    return capsys.readouterr().err


def assert_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Assert that a command ends with one sentence, which holds the message, or matches it."""
    error = error_of(arguments, capsys)
    assert error.startswith("ntk-alibi: error: ")
    assert message in error or re.search(message, error)
    assert error.count("\n") == 1

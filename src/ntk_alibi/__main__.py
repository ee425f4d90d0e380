"""Entry point of `python -m ntk_alibi`: the command line."""

from __future__ import annotations

from ntk_alibi.cli import main

main()

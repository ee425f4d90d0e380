"""Entry point of `python -m ntk_alibi.cli`."""

from ntk_alibi.cli import main

main()

"""Entry point of `python -m studies.schemes`."""

from ntk_alibi import _command_line

if __name__ == "__main__":
    with _command_line.sentences("python -m studies.schemes"):
        from studies.schemes.program import main

        main()

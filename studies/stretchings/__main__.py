"""Entry point of `python -m studies.stretchings`."""

from ntk_alibi import _command_line

if __name__ == "__main__":
    with _command_line.sentences("python -m studies.stretchings"):
        from studies.stretchings.program import main

        main()

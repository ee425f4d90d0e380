"""Entry point of `python -m studies.stretchings`."""

from ntk_alibi.cli import errors

if __name__ == "__main__":
    with errors.sentences("python -m studies.stretchings"):
        from studies.stretchings.program import main

        main()

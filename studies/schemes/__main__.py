"""Entry point of `python -m studies.schemes`."""

from ntk_alibi.cli import errors

if __name__ == "__main__":
    with errors.sentences("python -m studies.schemes"):
        from studies.schemes.program import main

        main()

"""Entry point of `python -m studies.encoder`."""

from ntk_alibi.cli import errors

if __name__ == "__main__":
    with errors.sentences("python -m studies.encoder"):
        from studies.encoder.program import main

        main()

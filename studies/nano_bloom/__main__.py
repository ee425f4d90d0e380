"""Entry point of `python -m studies.nano_bloom`."""

from ntk_alibi.cli import errors

if __name__ == "__main__":
    with errors.sentences("python -m studies.nano_bloom"):
        from studies.nano_bloom.program import main

        main()

"""Entry point of `python -m studies.nano_bloom`."""

from ntk_alibi import _command_line

if __name__ == "__main__":
    with _command_line.sentences("python -m studies.nano_bloom"):
        from studies.nano_bloom.program import main

        main()

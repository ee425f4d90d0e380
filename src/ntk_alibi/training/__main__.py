"""Entry point of `python -m ntk_alibi.training`."""

from ntk_alibi import _command_line

if __name__ == "__main__":
    with _command_line.sentences("python -m ntk_alibi.training"):
        from ntk_alibi.training.nano_bloom import main

        main()

"""Entry point of `python -m ntk_alibi.extrapolation`."""

from ntk_alibi import _command_line

if __name__ == "__main__":
    with _command_line.sentences("python -m ntk_alibi.extrapolation"):
        from ntk_alibi.extrapolation.study import main

        main()

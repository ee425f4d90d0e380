"""Entry point of `python -m ntk_alibi.extrapolation`."""

from ntk_alibi.extrapolation.study import main

if __name__ == "__main__":
    main()

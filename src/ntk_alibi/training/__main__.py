"""Entry point of `python -m ntk_alibi.training`."""

from ntk_alibi.training.nano_bloom import main

if __name__ == "__main__":
    main()

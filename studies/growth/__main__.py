"""Entry point of `python -m studies.growth`."""

from studies import start

if __name__ == "__main__":  # not in the processes that a study starts
    start("growth")

"""Entry point of `python -m studies.nano_bloom`."""

from studies import start

if __name__ == "__main__":  # not in the processes that a study starts
    start("nano_bloom")

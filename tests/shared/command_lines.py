"""Program that runs command lines of `ntk-alibi` one after the other, given as a list in JSON."""

import json
import sys

from ntk_alibi.cli import main

if __name__ == "__main__":
    for command in json.loads(sys.argv[1]):
        main(command)

"""A process that runs cases and writes the name of each before, so a crash has a name."""

from __future__ import annotations

import argparse
import faulthandler
import json
import mmap
import time
import warnings
from collections import Counter
from pathlib import Path

import torch

import ntk_alibi as na
from fuzz.case import drawn_case

#: Bytes of the file with the name of the current case.
NAME = 64

#: Seconds between two messages of counts, and those after which a case hangs.
EVERY, HANGS = 1.0, 120.0


def main() -> None:
    """Run cases; write counts and reports to stdout, one JSON object a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--cases", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--kinds", required=True)
    parser.add_argument("--current", type=Path, required=True)
    options = parser.parse_args()
    faulthandler.enable()
    prepare()
    last = options.first + options.cases * options.step
    seeds = range(options.first, last, options.step)
    run(seeds, options.kinds.split(","), options.current, time.monotonic() + options.seconds)


def prepare() -> None:
    """Turn warnings into errors; use one thread, unless a case uses two."""
    warnings.simplefilter("error")
    na.set_num_threads(1)
    torch.set_num_threads(1)


def run(seeds: range, kinds: list[str], current: Path, deadline: float) -> None:
    """Run the cases of some seeds until a deadline."""
    counts: Counter[str] = Counter()
    said = 0.0
    current.write_bytes(b" " * NAME)
    with current.open("r+b") as file, mmap.mmap(file.fileno(), NAME) as name:
        for seed in seeds:
            if time.monotonic() > said + EVERY:
                _say(counts=counts, seed=seed)
                counts, said = Counter(), time.monotonic()
                faulthandler.dump_traceback_later(HANGS, exit=True)
                if said > deadline:
                    break
            case = drawn_case(seed, kinds)
            name[:NAME] = f"{case.kind} {case.seed}".encode().ljust(NAME)
            report = case.run()
            counts[case.kind] += 1
            if report is not None:
                _say(kind=case.kind, report=report)
    _say(counts=counts)


def _say(**message: object) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()

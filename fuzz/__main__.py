"""Run a campaign, `python -m fuzz --minutes 5`, or one case again, `--kind forward --seed 123`."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time

from fuzz.campaign import Campaign
from fuzz.case import Case
from fuzz.kinds import KINDS
from fuzz.worker import prepare

#: No end: of cases in a campaign of some minutes, and of seconds in one of some cases.
ENDLESS = 2**40


def main() -> int:
    """Run the command line; return 1 if anything was wrong."""
    options = _parser().parse_args()
    if options.minutes is None and options.cases is None:
        return _again(options)
    return _campaign(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, help="run a campaign of so many minutes")
    parser.add_argument("--cases", type=int, help="run a campaign of so many cases")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this kind; repeatable")
    parser.add_argument("--seed", type=int, help="of the case, or of a campaign's first case")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    return parser


def _again(options: argparse.Namespace) -> int:
    if options.seed is None or not options.kind:
        _parser().error("give --minutes or --cases, or --kind and --seed of one case")
    prepare()
    reports = [Case(kind, options.seed).run() for kind in options.kind]
    print("\n".join(report or "right" for report in reports))
    return int(any(reports))


def _campaign(options: argparse.Namespace) -> int:
    seed = random.SystemRandom().getrandbits(40) if options.seed is None else options.seed
    kinds = options.kind or [kind for kind, (weight, _) in KINDS.items() if weight]
    print(f"fuzz: first seed {seed}", flush=True)
    seconds = ENDLESS if options.minutes is None else 60.0 * options.minutes
    cases = ENDLESS if options.cases is None else options.cases
    begin = time.monotonic()
    results = Campaign(seed, kinds, seconds, cases, options.jobs).run()
    took = time.monotonic() - begin
    for kind, count in sorted(results.counts.items()):
        wrong = results.wrong[kind]
        print(f"{count:>10,} {kind}" + f", {wrong} of them wrong" * bool(wrong))
    total = results.counts.total()
    print(f"{total:>10,} cases in {took:.0f} s, {total / took:.0f} a second, first seed {seed}")
    return int(bool(results.wrong) or not total)


if __name__ == "__main__":
    sys.exit(main())

"""Running many cases on every instruction set, in processes that may crash."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ntk_alibi as na

#: Reports of each kind that are printed; more of them are counted.
MOST_REPORTS = 5


@dataclass
class Results:
    """The outcome of a campaign.

    Attributes:
        counts: cases by kind.
        wrong: wrong results, unexpected errors and crashes by kind.
    """

    counts: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)

    def add(self, message: dict[str, Any]) -> None:
        """Add a worker's counts and reports."""
        self.counts.update(message.get("counts", {}))
        if "report" in message:
            self.report(message["kind"], message["report"])

    def report(self, kind: str, text: str) -> None:
        """Count a report, and print it at once."""
        self.wrong[kind] += 1
        if self.wrong[kind] <= MOST_REPORTS:
            print(f"\n{text}", flush=True)


@dataclass(frozen=True)
class Campaign:
    """A campaign of a number of cases, or of as many as a time allows.

    Attributes:
        seed: the first seed; cases have this one and those after it.
        kinds: the kinds to draw from.
        seconds: the time for all cases.
        cases: the largest number of cases.
        jobs: the number of processes at a time.
    """

    seed: int
    kinds: list[str]
    seconds: float
    cases: int
    jobs: int

    def run(self) -> Results:
        """Run the campaign, with a share of time and cases on each instruction set."""
        isas = na.info()["isas"] * math.ceil(self.jobs / len(na.info()["isas"]))
        results = Results()
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(self.jobs) as pool:
            shares = [
                _Share(self, isa, i, len(isas), Path(folder, str(i)), results)
                for i, isa in enumerate(isas)
            ]
            list(pool.map(_Share.run, shares))
        return results


@dataclass
class _Share:
    """The part of a campaign on one instruction set."""

    campaign: Campaign
    isa: str
    index: int
    of: int
    current: Path
    results: Results

    def run(self) -> None:
        """Run workers one after another; after a crash the next worker continues."""
        seconds = self.campaign.seconds * self.campaign.jobs / self.of
        deadline = time.monotonic() + seconds
        seed = self.campaign.seed + self.index
        end = seed + math.ceil(self.campaign.cases / self.of) * self.of
        while seed < end and time.monotonic() < deadline:
            status = self._work(seed, (end - seed) // self.of, deadline - time.monotonic())
            if status == 0:
                return
            kind, last = (self.current.read_text().split() or ["none", str(end)])[:2]
            self.results.counts[kind] += 1
            self.results.report(
                kind,
                f"NTK_ALIBI_ISA={self.isa} python -m fuzz --kind {kind} --seed {last}\n"
                f"the process died with status {status}",
            )
            seed = int(last) + self.of

    def _work(self, seed: int, cases: int, seconds: float) -> int:
        """Run a worker, and return its exit status."""
        command = [
            *(sys.executable, "-m", "fuzz.worker", "--kinds", ",".join(self.campaign.kinds)),
            *("--first", str(seed), "--step", str(self.of), "--cases", str(cases)),
            *("--seconds", str(seconds), "--current", str(self.current)),
        ]
        # NumPy's own threads would wait for the other processes, spinning.
        one = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        environment = {**os.environ, **one, "NTK_ALIBI_ISA": self.isa}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, env=environment, text=True
        ) as worker:
            for line in worker.stdout or ():
                self.results.add(json.loads(line))
        return worker.returncode

"""Inner loops of the kernels in the assembly for processors that are not at hand.

`python -m benchmarks.static_analysis` compiles the kernels with the flags of CMakeLists.txt, finds
the loops that hold their multiply-adds, and prints what each of them keeps on the stack and, by
llvm-mca's models of the processors, how many multiply-adds a cycle it does.

What lies on the stack is read from the assembly alone. The models know execution units, latencies
and the front end; every load is a hit in the nearest cache and every branch is predicted. Products
of decoding with keys are straight code between two branches, not a loop, and are not listed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks import DOCUMENT, ROOT
from ntk_alibi.evaluation.report.markdown import replace_section, table

#: Instruction sets of each architecture, with the processors whose models are asked, by llvm's
#: names.
CORES: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "portable": (),
        "avx2": ("haswell", "skylake", "alderlake"),
        "avx512": ("skylake-avx512", "sapphirerapids"),
        "avx512_bf16": ("sapphirerapids",),
    },
    "aarch64": {"neon": ("neoverse-v1", "neoverse-v2", "apple-m1")},
}

#: The first versions of LLVM that know these processors.
OLDEST = {"x86_64": 12, "aarch64": 16}

#: g++ for this machine, and Debian's names of those for the others.
COMPILERS = {
    name: "g++" if name == platform.machine() else f"{name}-linux-gnu-g++" for name in CORES
}

#: What a loop does, by its source, the function that contains it after inlining, and its kind. The
#: first line that fits counts.
JOBS = (
    ("values", "attention", "add_channels", "products"),
    ("scores", "attention", "", "products"),
    ("weights", "attention", "", "weights"),
    ("gradients of keys and values", "attention_gradient", "add_over_queries", "products"),
    ("gradients of queries", "attention_gradient", "add_channels", "products"),
    ("scores and do.v of gradients", "attention_gradient", "", "products"),
    ("weights of gradients", "attention_gradient", "", "weights"),
    ("a block of keys", "one_block", "", "products"),
    ("weights of a block of keys", "one_block", "", "weights"),
    ("values of one query", "decode", "", "products"),
    ("weights of one query", "decode", "", "weights"),
)

#: Loops of products with fewer multiply-adds belong to the edges of a problem.
FEWEST = 8

ITERATIONS = 100


# --- assembly -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dialect:
    """How one architecture writes its assembly.

    Attributes:
        comment: what begins a comment.
        jump: a jump to a label.
        vector: a register of vectors.
        multiply_add: a multiply-add of vectors; where there is none, a product.
        sums: an instruction that adds to its destination; the group is that register.
        written: the register that an instruction of vectors writes.
        stack: an operand on the stack, if `frame` points into it or not.
        frame: the instruction that makes the frame pointer point into the stack.
        weighs: an instruction that only exponentials have.
        leaves: an instruction after which a loop, unless it is the last one, goes on elsewhere.
        alone: a pattern of multiply-adds, and what makes one of registers alone of them.
    """

    comment: str
    jump: re.Pattern[str]
    vector: re.Pattern[str]
    multiply_add: re.Pattern[str]
    sums: re.Pattern[str]
    written: re.Pattern[str]
    stack: dict[bool, re.Pattern[str]]
    frame: re.Pattern[str]
    weighs: re.Pattern[str]
    leaves: re.Pattern[str]
    alone: tuple[str, str]


DIALECTS = {
    "x86_64": Dialect(
        comment="#",
        jump=re.compile(r"j\w+\s+(\.L\w+)$"),
        vector=re.compile(r"%[xyz]mm\d"),
        multiply_add=re.compile(r"(vfn?m(add|sub)\d+ps|vdpbf16ps|mulps)\s"),
        sums=re.compile(r"(?:vfn?madd231ps|vdpbf16ps|addps)\s.*%[xyz]mm(\d+)$"),
        written=re.compile(r"\w+\s.*%[xyz]mm(\d+)(?:\{.*\})?$"),
        stack={
            False: re.compile(r"\(%rsp[,)]"),
            True: re.compile(r"\(%r[sb]p[,)]"),
        },
        frame=re.compile(r"(movq\s+%rsp, %rbp|leaq\s+\S*\(%rsp\), %rbp)$"),
        weighs=re.compile(r"(vscalefps|v?pslld\s+\$23,)"),
        leaves=re.compile(r"(ret|call|jmp)\b"),
        alone=(r"(\w+) .*(%[xyz]mm\d+)$", r"\1 \2, \2, \2"),
    ),
    "aarch64": Dialect(
        comment="//",
        jump=re.compile(r"(?:b|b\.?\w\w|cbn?z\s+\w+,|tbn?z\s+\w+, #?\d+,)\s+(\.L\w+)$"),
        vector=re.compile(r"\b[qv]\d+\b"),
        multiply_add=re.compile(r"fml[as]\s"),
        sums=re.compile(r"fml[as]\s+v(\d+)\.4s"),
        written=re.compile(r"(?!st|cmp|fcmp)\w+\s+[qvds](\d+)\b"),
        stack={
            False: re.compile(r"\[sp\b"),
            True: re.compile(r"\[(sp|x29)\b"),
        },
        frame=re.compile(r"(mov\s+x29, sp|add\s+x29, sp,.*)$"),
        weighs=re.compile(r"shl\s+v\d+\.4s, v\d+\.4s, #?23$"),
        leaves=re.compile(r"(ret|bl|b)( |$)"),
        alone=(r"(.+)", r"\1"),
    ),
}


@dataclass(frozen=True)
class Loop:
    """An innermost loop with multiply-adds of vectors.

    Attributes:
        symbol: the linker's name of the function that contains it.
        kind: "weights" if it has exponentials, "products" if nearly all multiply-adds go to sums
            that are kept from turn to turn, in registers or on the stack, else "other".
        lines: its instructions.
        multiply_adds, vectors: how many of them are multiply-adds, and use registers of vectors.
        spills: how many of these have an operand on the stack.
        reloads: how many other instructions have one.
    """

    symbol: str
    kind: str
    lines: tuple[str, ...]
    multiply_adds: int
    vectors: int
    spills: int
    reloads: int


def loops(assembly: str, architecture: str) -> Iterator[Loop]:
    """Yield the innermost loops with multiply-adds of all functions of an assembly file."""
    dialect = DIALECTS[architecture]
    for symbol, lines in _functions(assembly, dialect):
        frame = any(dialect.frame.match(line) for line in lines)
        for begin, end in _innermost(lines, dialect):
            # Without the names of labels, loops of two instances of a template are often equal.
            body = tuple(
                re.sub(r"\.L\w+$", ".L", line)
                for line in lines[begin : end + 1]
                if not line.endswith(":")
            )
            if any(dialect.multiply_add.match(line) for line in body):
                yield _loop(symbol, body, dialect, dialect.stack[frame])


def _functions(assembly: str, dialect: Dialect) -> Iterator[tuple[str, list[str]]]:
    """Yield the symbol, and the labels and instructions, of each function."""
    symbol, lines = "", list[str]()
    for raw in assembly.splitlines():
        line = raw.split(dialect.comment)[0].strip().replace("\t", " ")
        if re.fullmatch(r"[A-Za-z_][\w.$]*:", line):
            if lines:
                yield symbol, lines
            symbol, lines = line[:-1], []
        elif line and (not line.startswith(".") or line.endswith(":")):
            lines.append(line)
    if lines:
        yield symbol, lines


def _innermost(lines: list[str], dialect: Dialect) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of each loop that has no other loop within."""
    at = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    ends: dict[int, int] = {}
    for i, line in enumerate(lines):
        jump = dialect.jump.match(line)
        if jump and at.get(jump.group(1), i) < i:
            ends[at[jump.group(1)]] = i
    for begin, end in ends.items():
        if not any(begin < other and ends[other] <= end for other in ends):
            yield begin, end


def _loop(symbol: str, lines: tuple[str, ...], dialect: Dialect, stack: re.Pattern[str]) -> Loop:
    vectors = [line for line in lines if dialect.vector.search(line)]
    on_stack = [line for line in lines if stack.search(line)]
    # A sum that is fetched from the stack, and put back, is a sum all the same.
    writes = Counter(
        m.group(1)
        for line in vectors
        if line not in on_stack and (m := dialect.written.match(line))
    )
    sums = Counter(m.group(1) for line in vectors if (m := dialect.sums.match(line)))
    kept = sum(count for register, count in sums.items() if count == writes[register])
    multiply_adds = sum(bool(dialect.multiply_add.match(line)) for line in vectors)
    if any(dialect.weighs.match(line) for line in lines):
        kind = "weights"
    elif kept >= 0.75 * multiply_adds and not any(map(dialect.leaves.match, lines[:-1])):
        kind = "products"
    else:
        kind = "other"
    spills = sum(bool(dialect.vector.search(line)) for line in on_stack)
    return Loop(symbol, kind, lines, multiply_adds, len(vectors), spills, len(on_stack) - spills)


# --- compilers and models -------------------------------------------------------------------------


def compiled(architecture: str, isas: Collection[str]) -> dict[str, dict[str, list[Loop]]]:
    """Return the loops of each job on some instruction sets of an architecture."""
    with tempfile.TemporaryDirectory() as folder:
        _output(
            *("cmake", "-S", str(ROOT), "-B", folder, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"),
            *(f"-DCMAKE_CXX_COMPILER={COMPILERS[architecture]}", "-DNTK_ALIBI_OPENMP=OFF"),
            *("-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={architecture}"),
        )
        sources = {source for _, source, _, _ in JOBS}
        commands = []
        for entry in json.loads((Path(folder) / "compile_commands.json").read_text()):
            words, source = shlex.split(entry["command"]), Path(entry["file"]).stem
            isa = next((w.split("=")[1] for w in words if w.startswith("-DNTK_ALIBI_ISA=")), None)
            if isa is not None and isa in isas and source in sources:
                command = [*words[: words.index("-o")], "-S", "-o", "-", entry["file"]]
                commands.append((isa, source, command))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            texts = pool.map(lambda command: _output(*command[2]), commands)
            named = zip(commands, texts, strict=True)
            return jobs(architecture, [(isa, source, text) for (isa, source, _), text in named])


def jobs(
    architecture: str, assembly: Iterable[tuple[str, str, str]]
) -> dict[str, dict[str, list[Loop]]]:
    """Return the loops of each job, of (instruction set, stem of a source, its assembly)."""
    found: dict[str, dict[str, list[Loop]]] = {}
    for isa, source, text in assembly:
        of_isa = found.setdefault(isa, {})
        for loop in loops(text, architecture):
            if job := _job(source, loop):
                of_isa.setdefault(job, []).append(loop)
    return found


def _job(source: str, loop: Loop) -> str | None:
    if loop.kind == "products" and loop.multiply_adds < FEWEST:
        return None
    for job, of_source, function, kind in JOBS:
        if (source, loop.kind) == (of_source, kind) and function in loop.symbol:
            return job + (", bfloat16 pairs" if "Bfloat16Pairs" in loop.symbol else "")
    return None


def simulator(architecture: str) -> str | None:
    """Return the newest llvm-mca that is installed, or None if none knows the processors."""
    versions = {}
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        for path in Path(folder).glob("llvm-mca*"):
            version = re.search(r"LLVM version (\d+)", _output(str(path), "--version"))
            if version:
                versions[int(version.group(1))] = str(path)
    newest = max(versions, default=0)
    return versions[newest] if newest >= OLDEST[architecture] else None


def simulated(
    program: str, architecture: str, core: str, blocks: Iterable[Iterable[str]]
) -> list[tuple[float, float]]:
    """Return the cycles of one turn of each block, and the fewest that the units allow."""
    comment = DIALECTS[architecture].comment
    text = "".join(
        f"{comment} LLVM-MCA-BEGIN {i}\n" + "\n".join(block) + f"\n{comment} LLVM-MCA-END\n"
        for i, block in enumerate(blocks)
    )
    output = _output(
        *(program, f"-mtriple={architecture}-linux-gnu", f"-mcpu={core}", "-json"),
        *(f"-iterations={ITERATIONS}", "-"),
        given=text,
    )
    views = [region["SummaryView"] for region in json.loads(output)["CodeRegions"]]
    return [(view["TotalCycles"] / ITERATIONS, view["BlockRThroughput"]) for view in views]


def _output(*command: str, given: str | None = None) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}: {done.stderr[-2000:]}")
    return done.stdout


# --- tables ---------------------------------------------------------------------------------------


def tables(architecture: str, found: dict[str, dict[str, list[Loop]]]) -> str:
    """Return a table of the loops of each instruction set, the slowest of each job."""
    parts, program = [], simulator(architecture)
    for isa, jobs in found.items():
        groups: dict[tuple[str, int], list[Loop]] = {}
        for job, of_job in jobs.items():
            for loop in of_job:
                groups.setdefault((job, loop.multiply_adds), []).append(loop)
        cores = CORES[architecture][isa]
        columns = [_column(program, architecture, core, list(groups.values())) for core in cores]
        rows = [
            [
                job,
                str(multiply_adds),
                _range(len(loop.lines) for loop in of_group),
                _range(loop.vectors for loop in of_group),
                _range(loop.spills for loop in of_group),
                _range(loop.reloads for loop in of_group),
                *(column[i] for column in columns),
            ]
            for i, ((job, multiply_adds), of_group) in enumerate(groups.items())
        ]
        header = ["", "multiply-adds", "instructions", "of vectors", "spills", "reloads", *cores]
        parts.append(f"**{isa}**, {_version(COMPILERS[architecture])}\n\n{table(header, rows)}")
    return "\n\n".join(parts)


def _column(
    program: str | None, architecture: str, core: str, groups: list[list[Loop]]
) -> list[str]:
    """Return multiply-adds a cycle of the slowest loop of each group: done / allowed / peak."""
    if program is None:
        return ["no llvm-mca"] * len(groups)
    every = {loop.lines: loop for group in groups for loop in group}
    alone = [[_alone(loop, DIALECTS[architecture])] * FEWEST for loop in every.values()]
    cycles = simulated(program, architecture, core, [*every, *alone])
    speeds = {
        lines: (loop.multiply_adds / done, loop.multiply_adds / allowed, FEWEST / fewest)
        for (lines, loop), (done, allowed), (_, fewest) in zip(
            every.items(), cycles[: len(every)], cycles[len(every) :], strict=True
        )
    }
    slowest = [min(speeds[loop.lines] for loop in group) for group in groups]
    return [" / ".join(f"{speed:.2f}" for speed in loop) for loop in slowest]


def _alone(loop: Loop, dialect: Dialect) -> str:
    line = next(line for line in loop.lines if dialect.multiply_add.match(line))
    return re.sub(*dialect.alone, line)


def _range(counts: Iterable[int]) -> str:
    ordered = sorted(counts)
    return str(ordered[0]) if ordered[0] == ordered[-1] else f"{ordered[0]}-{ordered[-1]}"


@cache
def _version(compiler: str) -> str:
    return _output(compiler, "--version").splitlines()[0]


def main() -> None:
    """Print the tables and, with --write, put them into benchmarks/results/tables.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.static_analysis")
    parser.add_argument("--write", action="store_true", help=f"write them into {DOCUMENT.name}")
    options = parser.parse_args()
    parts = []
    for architecture, compiler in COMPILERS.items():
        if shutil.which(compiler) is None:
            parts.append(f"{architecture}: left out, {compiler} is not installed")
        else:
            parts.append(tables(architecture, compiled(architecture, CORES[architecture])))
        print(parts[-1], end="\n\n", flush=True)
    if options.write:
        replace_section(DOCUMENT, "static-analysis", "\n\n".join(parts))


if __name__ == "__main__":
    main()

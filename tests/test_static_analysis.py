"""Tests of the inner loops in the kernels' assembly: what they keep on the stack."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

import pytest
from benchmarks import static_analysis
from benchmarks.static_analysis import COMPILERS, CORES, loops

#: Two turns of a loop with two sums, one of which lies on the stack, in a loop over rows.
SPILLING = {
    "x86_64": """
        _Z4sumsPKf:
            vxorps %xmm1, %xmm1, %xmm1
        .L2:
            xorl %eax, %eax
        .L3:
            vbroadcastss (%rdi,%rax), %ymm3
            vmovaps 32(%rsp), %ymm2
            vfmadd231ps (%rsi,%rax), %ymm3, %ymm1
            vfmadd231ps %ymm3, %ymm3, %ymm2
            vmovaps %ymm2, 32(%rsp)
            addq 8(%rsp), %rax
            jne .L3
            jne .L2
            ret
        """,
    "aarch64": """
        _Z4sumsPKf:
        .L2:
            mov x0, 0
        .L3:
            ldr s3, [x1, x0]
            ldr q2, [sp, 32]
            fmla v1.4s, v4.4s, v3.s[0]
            fmla v2.4s, v5.4s, v3.s[0]
            str q2, [sp, 32]
            ldr x2, [sp, 8]
            b.ne .L3
            bne .L2
            ret
        """,
}


@pytest.mark.parametrize("architecture", CORES)
def test_what_lies_on_the_stack_is_found(architecture: str) -> None:
    assembly = textwrap.dedent(SPILLING[architecture])
    (loop,) = loops(assembly, architecture)
    assert loop.symbol == "_Z4sumsPKf"
    assert (loop.multiply_adds, loop.spills, loop.reloads) == (2, 2, 1)
    assert loop.kind == "products"
    (loop,) = loops(
        assembly.replace("sp", "x9" if architecture == "aarch64" else "9"), architecture
    )
    assert (loop.spills, loop.reloads) == (0, 0)


@pytest.mark.parametrize("architecture", CORES)
def test_numbers_that_are_made_anew_are_no_sums(architecture: str) -> None:
    zero = {"x86_64": "vxorps %xmm1, %xmm1, %xmm1", "aarch64": "movi v1.4s, 0"}[architecture]
    lines = textwrap.dedent(SPILLING[architecture]).splitlines()
    lines.insert(lines.index(".L3:") + 1, zero)
    (loop,) = loops("\n".join(lines), architecture)
    assert loop.kind == "other"


def test_the_newest_simulator_is_asked_if_it_knows_the_processors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for number in (9, 14):
        program = tmp_path / f"llvm-mca-{number}"
        program.write_text(f"#!/bin/sh\necho Debian LLVM version {number}.0.6\n")
        program.chmod(0o755)
    assert static_analysis.simulator("x86_64") == str(tmp_path / "llvm-mca-14")
    assert static_analysis.simulator("aarch64") is None


@pytest.mark.slow
def test_the_kernels_of_an_instruction_set_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cpp_programs` looks into the assembly of all of them, which builds of other tests leave."""
    if shutil.which(COMPILERS["x86_64"]) is None:
        pytest.skip(f"{COMPILERS['x86_64']} is not installed")
    jobs = [job for job in static_analysis.JOBS if job[1] == "one_block"]
    monkeypatch.setattr(static_analysis, "JOBS", jobs)
    found = static_analysis.compiled("x86_64", ["avx2"])
    assert found.keys() == {"avx2"}
    assert found["avx2"].keys() == {job[0] for job in jobs}
    monkeypatch.setattr(static_analysis, "simulator", lambda _: None)
    assert "no llvm-mca" in static_analysis.tables("x86_64", found)

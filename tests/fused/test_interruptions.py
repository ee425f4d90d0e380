"""Calls that are interrupted by Ctrl-C, by signal handlers, or by missing memory or threads."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

#: A process may answer this late, in seconds, after it was asked to stop.
PROMPT = 0.5

#: Rows of 8 heads, for as many tokens as a test asks for.
SETUP = """
import os, signal, threading, time
import numpy as np, ntk_alibi as na
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a job in the background inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)
LENGTH = {length}
q = np.random.default_rng(0).standard_normal((1, 8, LENGTH, 128), dtype=np.float32)
"""

#: Tokens whose attention takes much longer than a test waits for it.
LONG = 40000

#: Calls that take at least ten seconds.
CALLS = {
    "forward": "na.attention(q, q, q, na.ALiBi(8), skip_tolerance=None)",
    "few long rows": (
        "na.attention(q[:, :1, :64], *[np.broadcast_to(q[:, :1, :1], (1, 1, 2**24, 128))] * 2, "
        "causal=False)"
    ),
    "backward": (
        "from ntk_alibi.fused.gradients import attention_gradients\n"
        "attention_gradients(q, q, q, q, np.full(q.shape[:3], 9.0), q, skip_tolerance=None)"
    ),
    "autograd": (
        "import torch\n"
        "t = torch.from_numpy(q).requires_grad_()\n"
        "na.attention(t, t, t, na.ALiBi(8), skip_tolerance=None).sum().backward()"
    ),
    "a bias tensor": (
        "out = np.empty((1, 8, 1000, LENGTH), np.float32)\n"
        "while True:\n"
        "    na.ALiBi(8).tensor(1000, LENGTH, out=out)"
    ),
    "one head of the backward pass is left": (
        "from ntk_alibi.fused.gradients import attention_gradients\n"
        "q = q[:, :2]\n"
        "bias = na.ALiBi(2, slopes=np.float32([0.0, 1e4]))\n"
        "attention_gradients(q, q, q, q, np.full(q.shape[:3], 9.0), q, bias=bias, "
        "skip_tolerance=0.5)"
    ),
}


def run(code: str, length: int = LONG) -> subprocess.CompletedProcess[str]:
    return run_alone(SETUP.format(length=length) + textwrap.dedent(code))


def run_alone(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )


def interrupt(call: str, exception: str = "KeyboardInterrupt") -> float:
    """Interrupt a call after a second; return the seconds that it took to stop."""
    body = textwrap.indent(call, "    ")
    done = run(
        "sent = []\n"
        "def send():\n"
        "    sent.append(time.perf_counter())\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "threading.Timer(1.0, send).start()\n"
        f"try:\n{body}\n    print('finished')\n"
        f"except {exception}:\n    print(time.perf_counter() - sent[0])\n"
        "small = na.attention(q[:, :, :9], q[:, :, :9], q[:, :, :9])\n"
        "assert np.isfinite(small).all()\n"
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_ctrl_c_ends_a_call(call: str) -> None:
    assert interrupt(call) < PROMPT


@pytest.mark.slow
def test_exceptions_of_signal_handlers_end_a_call() -> None:
    done = run(
        f"""
        def handle(*_):
            raise RuntimeError("the handler's own")
        signal.signal(signal.SIGTERM, handle)
        threading.Timer(1.0, signal.raise_signal, [signal.SIGTERM]).start()
        {CALLS["forward"]}
        """
    )
    assert "RuntimeError: the handler's own" in done.stderr


@pytest.mark.slow
def test_other_threads_are_not_interrupted() -> None:
    done = run(
        """
        x, results = q, []
        worker = threading.Thread(target=lambda: results.append(na.attention(x, x, x)))
        worker.start()
        try:
            signal.raise_signal(signal.SIGINT)
            worker.join()
        except KeyboardInterrupt:
            worker.join()
        assert np.isfinite(results[0]).all()
        """,
        length=3000,
    )
    assert done.returncode == 0, done.stderr


LIMITED = """
import resource
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + {free} * 2**20, resource.RLIM_INFINITY))
"""


#: AddressSanitizer ends the process itself where memory runs out.
with_limits = pytest.mark.skipif(
    os.name == "nt" or "libasan" in os.environ.get("LD_PRELOAD", ""),
    reason="Windows has no such limits, and AddressSanitizer does not keep to them",
)


@with_limits
@pytest.mark.parametrize("free", [0, 1, 4, 9, 20, 60])
def test_memory_that_runs_out_is_a_memory_error(free: int) -> None:
    """Little memory fails at the output, at scratch memory or at the parts of gradients."""
    done = run(
        f"""
        from ntk_alibi.fused.gradients import attention_gradients
        x = q
        small, one = x[:, :, :40], x[:, :, :1]
        na.attention(one, one, one, na.ALiBi(8))  # the first call loads modules
        {textwrap.indent(LIMITED.format(free=free), " " * 8).strip()}
        for call in (
            lambda: na.attention(x, x, x, na.ALiBi(8)),
            lambda: attention_gradients(x, x, x, x, np.zeros(x.shape[:3]), x),
            lambda: na.attention(small, small, small, na.ALiBi(8)),
        ):
            try:
                call()
            except MemoryError:
                print("MemoryError")
        print("alive")
        """,
        length=2000,
    )
    assert done.stdout.endswith("alive\n"), done.stderr


@with_limits
@pytest.mark.parametrize("free", [5, 12])
def test_threads_that_cannot_be_started_are_done_without(free: int) -> None:
    """A thread's stack is 8 MiB of address space."""
    done = run(
        f"""
        na.set_num_threads(8)
        x = q
        expected = na._core.set_num_threads(1) or na.attention(x, x, x, na.ALiBi(8))
        na.set_num_threads(8)
        {textwrap.indent(LIMITED.format(free=free), " " * 8).strip()}
        found = na.attention(x, x, x, na.ALiBi(8))
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        np.testing.assert_array_equal(found, expected)
        """,
        length=100,
    )
    assert done.returncode == 0, done.stderr


def test_a_subinterpreter_is_refused() -> None:
    pytest.importorskip("_xxsubinterpreters")
    code = """
import _xxsubinterpreters as interpreters
interpreters.run_string(
    interpreters.create(isolated=False),
    "import warnings; warnings.simplefilter('ignore')\\nimport ntk_alibi"
)
"""
    done = run_alone(code)
    assert "must be imported in the main interpreter, got a subinterpreter" in done.stderr

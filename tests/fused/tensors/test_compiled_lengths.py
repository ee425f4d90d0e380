"""torch.compile and torch.export of `na.attention`: one graph serves every length."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch.export import Dim

import ntk_alibi as na

pytestmark = pytest.mark.needs("torch >= 2.12", "Dynamo of older ones reads no arrays of a bias")

HEADS, HEAD_DIM = 4, 8

#: torch makes a graph of its own for length 1, and one for the first length unless it is told that
#: lengths change.
LENGTHS = (31, 20, 19, 70, 2, 3, 33, 64, 65, 5, 40, 41, 50, 6)

SYMMETRIC = na.ALiBi(HEADS, sides="symmetric")
NTK = na.ALiBi(HEADS, na.NTK(4.0))
DYNAMIC = na.ALiBi(HEADS, na.DynamicNTK(2.0, 16))
OF_SHAPE = "no bias, a scale of the shape"
VALUES = torch.linspace(-1.0, 1.0, HEADS * 8).reshape(HEADS, 8)


def pairs(length: int) -> torch.Tensor:
    seen = torch.rand((1, 1, length, length), generator=torch.Generator().manual_seed(length)) < 0.5
    return seen | torch.eye(length, dtype=torch.bool)


def padding(length: int) -> torch.Tensor:
    return torch.arange(length) >= torch.tensor([[0], [length // 3]])


def rows(length: int) -> torch.Tensor:
    return torch.linspace(-2.0, 0.0, 2 * HEADS * length).reshape(2, HEADS, length)


def attend(bias: Any = NTK, **options: Any) -> Callable[..., Any]:
    return lambda q, k, v: na.attention(q, k, v, bias, **options)


#: Functions of query, key, value and another tensor, and what makes that tensor for a length.
FORMS: dict[str, tuple[Callable[..., Any], Any]] = {
    "ALiBi": (attend(), None),
    "dynamic": (attend(DYNAMIC), None),
    "dynamic, padded": (
        lambda q, k, v, m: na.attention(q, k, v, DYNAMIC, key_padding_mask=m), padding
    ),
    "dynamic, packed segments": (
        lambda q, k, v, ids: na.attention(q, k, v, DYNAMIC, segment_ids=ids),
        lambda length: torch.arange(length) // 40,
    ),
    OF_SHAPE: (
        lambda q, k, v: na.attention(q, k, v, scale=q.shape[-1] ** -0.5), None
    ),
    "more keys than queries": (
        lambda q, k, v: na.attention(q, torch.cat([v, k], 2), torch.cat([k, v], 2), NTK), None
    ),
    "window and sinks": (attend(window=16, sink=2), None),
    "mask": (lambda q, k, v, m: na.attention(q, k, v, SYMMETRIC, causal=False, mask=m), pairs),
    "BlockMask": (
        lambda q, k, v, m: na.attention(q, k, v, SYMMETRIC, causal=False, mask=m),
        lambda length: na.BlockMask(pairs(length)),
    ),
    "padding": (lambda q, k, v, m: na.attention(q, k, v, NTK, key_padding_mask=m), padding),
    "positions": (
        lambda q, k, v, p: na.attention(q, k, v, NTK, query_positions=p, key_positions=p),
        lambda length: 3 * torch.arange(length),
    ),
    "packed segments": (
        lambda q, k, v, ids: na.attention(q, k, v, NTK, segment_ids=ids),
        lambda length: torch.arange(length) // 7,
    ),
    "an array as bias": (na.attention, lambda length: rows(length)[:, :, None]),
    "table": (attend(na.DistanceTable(torch.linspace(0.0, -1.0, 80).expand(HEADS, 80))), None),
    "table with a window": (attend(na.Sandwich(HEADS), causal=False, window=9), None),
    "T5": (attend(na.T5(VALUES, bidirectional=True)), None),
    "forget gates": (lambda q, k, v, g: na.attention(q, k, v, na.ForgetGates(g)), rows),
    "RoPE": (attend(rotary=na.RoPE(HEAD_DIM)), None),
    "log n": (attend(log_n=16), None),
    "dropout": (attend(dropout=0.25, seed=3), None),
    "merge": (lambda q, k, v, log: na.merge((q, k, v), (log, 2 * log, 3 * log))[0], rows),
}  # fmt: skip

QUICK = ("ALiBi", "table")
forms = pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x in QUICK else pytest.mark.slow) for x in FORMS]
)


def inputs(length: int, batch: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    shape = (batch, HEADS, length, HEAD_DIM)
    return [torch.randn(shape, generator=generator, requires_grad=True) for _ in range(3)]


def graphs_after(
    function: Callable[..., Any], other: Any, lengths: tuple[int, ...], **options: Any
) -> int:
    """Compare a compiled function with itself at lengths; return the number of graphs."""
    torch.compiler.reset()
    counters.clear()
    compiled = torch.compile(function, fullgraph=True, **options)
    for length in lengths:
        sources = inputs(length)
        more = () if other is None else (other(length),)
        got, expected = compiled(*sources, *more), function(*sources, *more)
        torch.testing.assert_close(got, expected)
        weights = torch.linspace(0.0, 1.0, got.numel()).reshape(got.shape)
        found, wanted = (
            torch.autograd.grad((x * weights).sum(), sources, allow_unused=True)
            for x in (got, expected)
        )
        for x, y in zip(found, wanted, strict=True):
            torch.testing.assert_close(x, y)
    return int(counters["stats"]["unique_graphs"])


@forms
def test_two_graphs_serve_all_lengths(name: str) -> None:
    assert graphs_after(*FORMS[name], LENGTHS, backend="aot_eager") <= 2


@pytest.mark.parametrize("name", ["ALiBi", pytest.param("table", marks=pytest.mark.slow)])
def test_lengths_0_and_1_have_graphs_of_their_own(name: str) -> None:
    assert graphs_after(*FORMS[name], (9, 1, 0, 12, 14), backend="eager") <= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ALiBi", "mask", "T5"])
def test_by_inductor(name: str) -> None:
    assert graphs_after(*FORMS[name], LENGTHS[:5]) <= 2


#: What a call of 9 tokens is given besides the inputs, with sizes that are integers.
BESIDE: dict[str, dict[str, Any]] = {
    "positions": dict.fromkeys(("query_positions", "key_positions"), torch.arange(9).repeat(2, 1)),
    "segments": {"segment_ids": torch.arange(9).repeat(2, 1) // 4},
    "padding": {"key_padding_mask": torch.ones(2, 9)},
    "mask": {"mask": torch.ones(1, 1, 9, 9, dtype=torch.bool)},
    "dense": {"bias": torch.zeros(1, HEADS, 9, 9)},
    "gates": {"bias": na.ForgetGates(-torch.ones(2, HEADS, 9))},
    "slopes": {"bias": na.ALiBi(HEADS, slopes=torch.ones(2, HEADS, 9))},
}


@pytest.mark.parametrize("name", BESIDE)
def test_symbols_are_compared_with_integers(name: str) -> None:
    torch.compiler.reset()
    query = torch.randn(2, HEADS, 9, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    torch._dynamo.maybe_mark_dynamic(query, 2)

    def attending(query: torch.Tensor) -> torch.Tensor:
        return na.attention(query, query, query, **BESIDE[name])

    compiled = torch.compile(attending, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(query), attending(query))


def test_a_mask_of_another_length_is_refused() -> None:
    torch.compiler.reset()
    attending, mask = FORMS["mask"]
    compiled = torch.compile(attending, backend="eager", dynamic=True)
    compiled(*inputs(12), mask(12))
    with pytest.raises(ValueError, match="mask must have shape"):
        compiled(*inputs(18), mask(15))


def test_distances_beyond_a_table_are_refused() -> None:
    torch.compiler.reset()
    compiled = torch.compile(FORMS["table"][0], backend="eager", fullgraph=True, dynamic=True)
    compiled(*inputs(12))
    with pytest.raises(ValueError, match="table must cover the distances 0 to 80"):
        compiled(*inputs(81))


class Attend(torch.nn.Module):
    """A module of one's own."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = FORMS[name][0]

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        return self.function(query, key, value)


@pytest.mark.parametrize("name", ["dynamic", "T5", "RoPE", "log n", "dropout"])
def test_an_exported_module_takes_every_batch_and_length(name: str) -> None:
    sizes = {0: Dim("batch"), 2: Dim("length")}
    exported = torch.export.export(Attend(name), (*inputs(12),), dynamic_shapes=(sizes,) * 3)
    graph = exported.module()
    for length, batch in ((33, 3), (2, 1), (70, 2)):
        sources = inputs(length, batch)
        torch.testing.assert_close(graph(*sources), FORMS[name][0](*sources))


def test_an_exported_module_checks_what_it_gets() -> None:
    sizes = {2: Dim("length", max=100)}
    exported = torch.export.export(Attend("table"), (*inputs(12),), dynamic_shapes=(sizes,) * 3)
    with pytest.raises(ValueError, match="table must cover the distances 0 to 80"):
        exported.module()(*inputs(81))


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_lengths_that_depend_on_data() -> None:
    def attend_to_some(query: Any, key: Any, value: Any, kept: Any) -> Any:
        columns = kept.nonzero()[:, 0]
        return na.attention(
            query, key[:, :, columns], value[:, :, columns], SYMMETRIC, causal=False
        )

    torch.compiler.reset()
    compiled = torch.compile(attend_to_some, fullgraph=True, backend="eager")
    for share in (2, 3):
        kept = torch.arange(20) % share == 0
        torch.testing.assert_close(compiled(*inputs(20), kept), attend_to_some(*inputs(20), kept))


SAVED = """
import sys, torch, ntk_alibi.torch
inputs, expected = torch.load(sys.argv[2])
graph = torch.export.load(sys.argv[1]).module()
torch.testing.assert_close(graph(*inputs), expected)
"""


@pytest.mark.slow
def test_a_saved_graph_runs_in_a_process_that_imports_the_operators(tmp_path: Path) -> None:
    sizes = {0: Dim("batch"), 2: Dim("length")}
    exported = torch.export.export(Attend("ALiBi"), (*inputs(12),), dynamic_shapes=(sizes,) * 3)
    torch.export.save(exported, tmp_path / "graph.pt2")
    given = [x.detach() for x in inputs(33, 3)]
    torch.save((given, FORMS["ALiBi"][0](*given)), tmp_path / "tensors.pt")
    files = tmp_path / "graph.pt2", tmp_path / "tensors.pt"
    done = subprocess.run([sys.executable, "-c", SAVED, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")  # of torch itself
def test_a_library_of_aotinductor_takes_every_length(tmp_path: Path) -> None:
    sizes = {0: Dim("batch"), 2: Dim("length")}
    given = [x.detach() for x in inputs(12)]
    exported = torch.export.export(Attend("ALiBi"), (*given,), dynamic_shapes=(sizes,) * 3)
    path = str(tmp_path / "library.pt2")
    library = torch._inductor.aoti_load_package(
        torch._inductor.aoti_compile_and_package(exported, package_path=path)
    )
    for length, batch in ((33, 3), (2, 1)):
        later = [x.detach() for x in inputs(length, batch)]
        torch.testing.assert_close(library(*later), FORMS["ALiBi"][0](*later))

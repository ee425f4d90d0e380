"""Candidates from packages that may be missing, and from torch's compiler."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.candidates import Candidate
from benchmarks.problems import Problem
from ntk_alibi.cli.timing import Call


def flex(problem: Problem) -> Call:
    """Call FlexAttention, compiled for this shape, with a score_mod and a causal block mask."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    slopes, length = problem.slopes, problem.length

    def alibi(score: Any, _batch: Any, head: Any, query: Any, key: Any) -> Any:
        return score - slopes[head] * (query - key)

    def causal(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
        return query >= key

    torch.compiler.reset()
    mask = create_block_mask(causal, None, None, length, length, device="cpu")
    compiled = torch.compile(flex_attention, dynamic=False)
    inputs = problem.inputs

    def call() -> object:
        with torch.no_grad():
            return compiled(*inputs, score_mod=alibi, block_mask=mask)

    return call


def group_query_attention(problem: Problem) -> Call:
    """Call ONNX Runtime's GroupQueryAttention, which requires the bias of all pairs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = problem.case.threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        _onnx_model(problem), options, providers=["CPUExecutionProvider"]
    )
    batch, _, length, _ = problem.query.shape
    bias = problem.bias.tensor(length, length)
    feed: dict[str, Any] = {
        "lengths": np.full(batch, length - 1, np.int32),
        "longest": np.array([length], np.int32),
        "bias": bias,
    }
    for name in ("query", "key", "value"):
        rows = getattr(problem, name).transpose(1, 2).flatten(2)
        feed[name] = rows.contiguous().numpy()
    values = {k: onnxruntime.OrtValue.ortvalue_from_numpy(v) for k, v in feed.items()}
    return lambda: session.run_with_ort_values(["output"], values)[0]


def _onnx_model(problem: Problem) -> bytes:
    from onnx import TensorProto, helper

    types = {
        **dict.fromkeys(["query", "key", "value", "bias"], TensorProto.FLOAT),
        **dict.fromkeys(["lengths", "longest"], TensorProto.INT32),
    }
    optional = ["", ""], ["", "", ""]  # cache; cosines, sines and positions of rotary embeddings
    inputs = ["query", "key", "value", *optional[0], "lengths", "longest", *optional[1], "bias"]
    outputs = ["output", "present_key", "present_value"]
    node = helper.make_node(
        "GroupQueryAttention",
        inputs,
        outputs,
        domain="com.microsoft",
        num_heads=problem.heads,
        kv_num_heads=problem.heads,
        scale=problem.scale,
    )
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(name, kind, None) for name, kind in types.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    serialized: bytes = model.SerializeToString()
    return serialized


def _from_onnx(result: Any, problem: Problem) -> torch.Tensor:
    rows: torch.Tensor = torch.from_numpy(result.numpy())
    return rows.view(*rows.shape[:2], problem.heads, -1).transpose(1, 2)


def jax_attention(problem: Problem) -> Call:
    """Call jax.nn.dot_product_attention, jitted, with the bias computed inside."""
    import jax

    slopes = problem.slopes.numpy()[:, None, None]

    def attention(query: Any, key: Any, value: Any) -> Any:
        positions = jax.numpy.arange(query.shape[1])
        bias = -slopes * (positions[:, None] - positions[None, :])
        return jax.nn.dot_product_attention(query, key, value, bias[None], is_causal=True)

    compiled = jax.jit(attention)
    dtype = "bfloat16" if problem.case.dtype == torch.bfloat16 else "float32"
    inputs = [
        jax.numpy.asarray(part.transpose(1, 2).float().contiguous().numpy(), dtype=dtype)
        for part in problem.inputs
    ]

    def call() -> object:
        with one_core() if problem.case.threads == 1 else contextlib.nullcontext():
            return compiled(*inputs).block_until_ready()

    return call


def _from_jax(result: Any, _: Problem) -> torch.Tensor:
    return torch.from_numpy(np.array(result, dtype=np.float32)).transpose(1, 2)


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Pin all threads of this process to one core, as the size of JAX's pool cannot be set."""
    cores = os.sched_getaffinity(0)
    _pin([min(cores)])
    try:
        yield
    finally:
        _pin(list(cores))


def _pin(cores: Sequence[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


OPTIONAL = [
    Candidate("torch FlexAttention, compiled", flex, cost=1.6, set_up=6.0, shortest=512),
    Candidate(
        "ONNX Runtime GroupQueryAttention, bias of all pairs",
        group_query_attention,
        _from_onnx,
        runtime="onnxruntime",
        modules=("onnx", "onnxruntime"),
        dtypes=(torch.float32,),
        cost=1.4,
        bytes_per_pair=5,
    ),
    Candidate(
        "`jax.nn.dot_product_attention`, jitted",
        jax_attention,
        _from_jax,
        runtime="jax",
        modules=("jax",),
        cost=6.0,
        bytes_per_pair=9,
        set_up=1.0,
    ),
]

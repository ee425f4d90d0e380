"""The public names, and their parameters with defaults: at least the names of commit 784bb11.

Other code imports these names and passes these arguments, so a change here breaks it. New names may
be added to the tables at any time.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import subprocess
import sys
from collections.abc import Collection
from functools import reduce
from importlib import import_module
from typing import Any

import pytest

import ntk_alibi as na
from ntk_alibi import cli

#: Names of `ntk_alibi`.
NAMES = """
BAM NTK T5 XPOS ALiBi AlibiAttention BiALiBi DistanceFunction DistanceTable DynamicFlatHeads
DynamicInterpolation DynamicNTK FlatHeads ForgetGates GrowingCache Interpolation KerpleLog
KerplePower KeyNorms Knee LogN MaxBias QuantizedRows RoPE Sandwich Scaling WindowCache __version__
alibi_slopes attention build_alibi_tensor export info log_n_scale merge patch patched plots
precision reference scaling_from_config segment_ids_from_cu_seqlens set_num_threads unpatch
""".split()

#: Names of other modules, by their documented paths.
PATHS = {
    "ntk_alibi.biases": ("BiasObject", "KernelBias", "parameter"),
    "ntk_alibi.evaluation": (
        "Plan", "Summary", "evaluate", "parse_method", "read_summary", "score_lines",
        "score_topics",
    ),
    "ntk_alibi.evaluation.report": ("html", "study_tables"),
    "ntk_alibi.fused": (
        "AttentionGradients", "KeyNorms", "Stats", "attention", "attention_gradients", "merge",
    ),
    "ntk_alibi.inspection": ("bias_by_distance", "receptive_field", "visible_intervals", "weights"),
    "ntk_alibi.integrations": (
        "Attend", "Family", "ModelSlopes", "PatchHandle", "patch", "patched", "register", "unpatch",
    ),
    "ntk_alibi.models": ("load", "nano_bloom_path"),
    "ntk_alibi.torch.alibi_attention": ("AlibiAttention",),
    "ntk_alibi.torch.learned_bias": (
        "LearnedALiBi", "LearnedKerplePower", "LearnedKerpleLog", "LearnedBAM", "LearnedT5",
        "LearnedBiALiBi", "LearnedForgetGates",
    ),
}  # fmt: skip

#: Subcommands of `ntk-alibi`.
SUBCOMMANDS = ("info", "slopes", "eval", "lm-eval", "export", "bench", "notebooks")

#: Parameters and defaults; paths are relative to `ntk_alibi`, and "..." is a function.
SIGNATURES = """
BAM(alpha, beta, mu=0.0, epsilon=1e-05)
BAM.tensor(query_length, key_length, dtype=None, lengths=None, out=None)
NTK(factor)
NTK.scale_exponents(exponents, lengths=None)
NTK.to_config()
T5(values, bidirectional=True, max_distance=128)
T5.tensor(query_length, key_length, dtype=None, lengths=None, out=None)
XPOS(head_dim, base=10000.0, scale_base=512.0, gamma=0.4, *, layout='pairs', rotary_dim=None)
ALiBi(num_heads, scaling=None, *, sides='causal', slopes=None, exempt=0)
ALiBi.tensor(query_length, key_length, dtype=None, lengths=None, out=None)
AlibiAttention(num_heads, embed_dim, slopes=None, *, bias=None, causal=False, scaling=None,
    num_kv_heads=None, window=None, align='end', dropout=0.0, generator=None)
AlibiAttention.forward(q, k, v, mask=None, key_padding_mask=None)
BiALiBi(first, left, right)
BiALiBi.tensor(query_length, key_length, dtype=None, lengths=None, out=None)
DistanceFunction(function, num_heads)
DistanceFunction.tensor(query_length, key_length, dtype=None, lengths=None, out=None)
DistanceTable(table, begin=0)
DistanceTable.tensor(query_length, key_length, dtype=None, lengths=None, out=None)
DynamicFlatHeads(rate=2.0, train_length=None, share=0.25, *, per='query')
DynamicInterpolation(rate=1.0, train_length=None, *, per='sequence')
DynamicInterpolation.scale_exponents(exponents, lengths=None)
DynamicInterpolation.to_config()
DynamicKnee(start, rate=7.0, train_length=None, *, layers=None, per='query')
DynamicNTK(rate=1.0, train_length=None, *, per='sequence')
DynamicNTK.scale_exponents(exponents, lengths=None)
DynamicNTK.to_config()
FlatHeads(factor, share=0.25)
ForgetGates(log_gates)
ForgetGates.tensor(query_length, key_length, dtype=None, lengths=None, out=None)
GrowingCache(capacity=256, *, dtype=None)
Interpolation(factor)
Interpolation.scale_exponents(exponents, lengths=None)
Interpolation.to_config()
KerpleLog(r1, r2)
KerpleLog.tensor(query_length, key_length, dtype=None, lengths=None, out=None)
KerplePower(r1, r2)
KerplePower.tensor(query_length, key_length, dtype=None, lengths=None, out=None)
KeyNorms()
Knee(start, factor)
Knee.to_config()
LogN(train_length, strength=1.0, biased=False)
MaxBias(factor)
MaxBias.max_alibi_bias(num_heads, base=8.0)
KeyNorms.update(key)
QuantizedRows(numbers, scales)
QuantizedRows.dequantized(dtype=None)
QuantizedRows.of(x)
RoPE(head_dim, base=10000.0, factor=1.0, *, layout='pairs', rotary_dim=None)
RoPE.rotate(x, positions=None)
RoPE.stretched(scaling)
Sandwich(num_heads, dimension=128, lambdas=None)
Sandwich.concatenated(query, key, *, scale=None, query_positions=None, key_positions=None)
Sandwich.tensor(query_length, key_length, dtype=None, lengths=None, out=None)
Scaling.scale_exponents(exponents, lengths=None)
WindowCache(window, sink=0)
alibi_slopes(num_heads, scaling=None, lengths=None, *, rule='press')
attention(query, key, value, bias=None, *, causal=True, window=None, causal_block=None, sink=0,
    key_padding_mask=None, query_positions=None, key_positions=None, align='end', segment_ids=None,
    query_segment_ids=None, scale=None, skip_tolerance=0.0, rotary=None, log_n=None, initial=None,
    key_norms=None, dropout=0.0, seed=None, return_logsumexp=False, return_stats=False)
build_alibi_tensor(attention_mask, num_heads, dtype, scaling=None, *, anchor='first', out=None)
info()
log_n_scale(query_length, key_length, train_length, *, key_padding_mask=None,
    query_positions=None, key_positions=None, **mask)
export(model, path, method=None, *, format=None, dtype=None, tokenizer=None, cache=True,
    overwrite=False)
merge(outputs, logsumexps, *, out=None)
patched(model)
patch(model, method=None, *, attention=None, window=None, sink=None,
    causal_block=None)
scaling_from_config(config)
segment_ids_from_cu_seqlens(cu_seqlens)
set_num_threads(num_threads)
unpatch(model)
plots.accuracy_curves(summary, task, *, by='length', ax=None)
plots.alibi_rows(rows, ax=None)
plots.attention_map(model, tokenizer, text, *, layer=-1, head=1, ax=None)
plots.attention_maps(model, tokenizer, text, *, methods=None, layers=(-1,), heads=None)
plots.benchmark_curves(lengths, seconds, *, ours=(), baseline=None, limit=None, ax=None)
plots.bias_by_distance(biases, longest=512, *, heads=None, length=None, side='behind', ax=None)
plots.bias_maps(bias, query_length=32, key_length=None, *, heads=None, quantity='bias', ax=None)
plots.blocks(stats, *, batch=0, ax=None)
plots.exact_positions(shares, ax=None)
plots.extrapolation_curves(lengths, values, *, half_widths=None, train_length=None,
    quantity='nats per token', ax=None)
plots.intervals(query_length, key_length=None, *, ax=None, **options)
plots.mask(query_length, key_length=None, *, ax=None, **options)
plots.receptive_field(biases, *, shares=(0.36787944117144233, 0.01), longest=65536, length=None,
    side='behind', ax=None)
plots.rounded_positions(rounded, ax=None)
plots.slopes(num_heads, scalings=(None, Interpolation(factor=4.0), NTK(factor=4.0)), *,
    length=None, rule='press', ax=None)
plots.study_figure(summary)
plots.style(theme='light')
precision.Format(significant_bits, least_exponent, greatest)
precision.alibi_row(slope, length, dtype, form)
precision.collisions(dtype, window)
precision.exact_fraction(dtype, window)
precision.last_positions(dtype, window, count=100)
precision.rope_tables(length, head_dim, dtype, *, base=10000.0, repaired)
precision.rounded(numbers, dtype)
precision.softmax_error(query, key, slope, dtype, form)
reference.alibi_slopes(num_heads)
reference.attention(query, key, value, bias=0.0, scale=None, *, dropout=0.0, seed=0)
reference.attention_gradients(query, key, value, bias, output_gradient, logsumexp_gradient=None,
    scale=None, *, dropout=0.0, seed=0)
reference.dropout_factors(shape, dropout, seed)
reference.philox4x32(counter, key)
reference.bam(distance, alpha, beta, mu, epsilon=0.0)
reference.bialibi_bias(alpha, beta, gamma, query_length, key_length)
reference.build_alibi_tensor(attention_mask, slopes, anchor='first')
reference.distances(query_length, key_length)
reference.dynamic_factor(rate, length, train_length)
reference.exempt_bias(bias, exempt)
reference.forget_gates(log_gates, query_length)
reference.geometric_slopes(num_heads)
reference.halves_bias(left_slopes, right_slopes, query_length, key_length)
reference.interpolated_slopes(slopes, factor)
reference.kerple_log(distance, r1, r2)
reference.kerple_power(distance, r1, r2)
reference.key_positions(attention_mask)
reference.linear_bias(left_slopes, right_slopes, query_length, key_length)
reference.log_n_factors(visible, train_length)
reference.ntk_slopes(slopes, factor)
reference.published_ntk_slopes(num_heads, factor)
reference.receptive_field(slopes, share)
reference.rope(x, positions, base=10000.0)
reference.rope_ntk_base(base, factor, dim)
reference.rounded(number, significant_bits)
reference.sandwich(query_positions, key_positions, num_heads, dimension=128)
reference.sinusoidal_embeddings(positions, dimension)
reference.streaming_distances(length, window=None, sink=0, causal_block=None)
reference.symmetric_bias(slopes, query_length, key_length)
reference.total_variation(scores, other_scores)
reference.xpos_scores(query, key, query_positions, key_positions, base=10000.0,
    scale_base=512.0, gamma=0.4)
inspection.bias_by_distance(bias, longest, *, length=None, side='behind')
inspection.receptive_field(bias, share=0.36787944117144233, *, longest=65536, length=None,
    side='behind')
inspection.visible_intervals(query_length, key_length=None, **options)
inspection.weights(query_length, key_length=None, bias=None, **options)
models.load(model=None, dtype='float32')
models.nano_bloom_path()
torch.learned_bias.LearnedALiBi(num_heads, *, causal=True)
torch.learned_bias.LearnedALiBi.forward(hidden=None)
torch.learned_bias.LearnedBAM(num_heads, *, learn_mu=False)
torch.learned_bias.LearnedBAM.forward(hidden=None)
torch.learned_bias.LearnedBiALiBi(num_heads, *, generator=None)
torch.learned_bias.LearnedBiALiBi.forward(hidden=None)
torch.learned_bias.LearnedForgetGates(embed_dim, num_heads, *, bias=0.0)
torch.learned_bias.LearnedForgetGates.forward(hidden)
torch.learned_bias.LearnedKerpleLog(num_heads, *, generator=None)
torch.learned_bias.LearnedKerpleLog.forward(hidden=None)
torch.learned_bias.LearnedKerplePower(num_heads, *, generator=None)
torch.learned_bias.LearnedKerplePower.forward(hidden=None)
torch.learned_bias.LearnedT5(num_heads, num_buckets=32, *, bidirectional=False,
    max_distance=128)
torch.learned_bias.LearnedT5.forward(hidden=None)
torch.alibi_attention.AlibiAttention(num_heads, embed_dim, slopes=None, *, bias=None,
    causal=False, scaling=None, num_kv_heads=None, window=None, align='end', dropout=0.0,
    generator=None)
integrations.PatchHandle.undo()
integrations.patch(model, method=None, *, attention=None, window=None,
    sink=None, causal_block=None)
fused.gradients.AttentionGradients(query, key, value, left, right, dense, table=None,
    table_begin=0, sums=None, first=None, far_left=None, far_right=None)
fused.gradients.attention_gradients(query, key, value, output, logsumexp, output_gradient,
    logsumexp_gradient=None, bias=None, *, bias_gradient=False, **options)
evaluation.comparing.plan.Plan(train_length, methods=('original', 'interpolation:4', 'ntk:4',
    'dynamic-ntk:2', 'dynamic-flat', 'dynamic-flat:logn=0.5'),
    multiples=(1, 1.5, 2, 3, 4), line_records=8, line_questions=32, topic_records=12,
    topic_questions=5, prose_windows=8, seed=2026)
evaluation.comparing.length_study.evaluate(model, tokenizer, plan, path, *, quiet=False, wrap=...,
    name='nano-bloom')
evaluation.read_summary(path)
evaluation.report.study_tables(summary)
evaluation.report.html(table)
evaluation.score_lines(prediction, expected)
evaluation.score_topics(prediction, topics)
evaluation.parse_method(name, train_length)
evaluation.Plan(train_length, methods=('original', 'interpolation:4', 'ntk:4',
    'dynamic-ntk:2', 'dynamic-flat', 'dynamic-flat:logn=0.5'),
    multiples=(1, 1.5, 2, 3, 4), line_records=8, line_questions=32, topic_records=12,
    topic_questions=5, prose_windows=8, seed=2026)
evaluation.evaluate(model, tokenizer, plan, path, *, quiet=False, wrap=..., name='nano-bloom')
fused.Stats(visited, visible, weighed=None)
"""


def written(thing: Any, without: Collection[str] = ()) -> str:
    """Return the signature of a function or a class, without types and without some parameters."""
    signature = inspect.signature(thing)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self" and parameter.name not in without
    ]
    text = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    return re.sub(r"<function .*? at 0x\w+>", "...", str(text))


def resolve(path: str) -> Any:
    """Return the object at a dotted path from `ntk_alibi`, importing modules on the way."""

    def step(owner: Any, name: str) -> Any:
        try:
            return getattr(owner, name)
        except AttributeError:
            return import_module(f"{owner.__name__}.{name}")

    return reduce(step, path.split("."), na)


def test_the_names_of_the_package_are_there() -> None:
    assert set(NAMES) <= set(na.__all__)
    assert sorted(dir(na)) == sorted(na.__all__)
    for name in na.__all__:
        assert getattr(na, name) is not None


@pytest.mark.parametrize("module", PATHS)
def test_documented_paths_can_be_imported(module: str) -> None:
    for name in PATHS[module]:
        assert getattr(import_module(module), name) is not None


def test_lazy_names_are_those_of_the_modules_that_define_them() -> None:
    for old, new in (
        ("evaluation.evaluate", "evaluation.comparing.length_study.evaluate"),
        ("evaluation.report.html", "evaluation.report.tables.html"),
        ("torch.alibi_attention.AlibiAttention", "AlibiAttention"),
    ):
        assert resolve(old) is resolve(new)
    for module in ("ntk_alibi.evaluation", "ntk_alibi.evaluation.report"):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = import_module(module).nothing


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("patchh", ": did you mean patch?"),
        ("Ntk", ": did you mean NTK?"),
        ("alibi_slope", ": did you mean alibi_slopes?"),
        ("plot", ": did you mean plots?"),
        ("models", ": import ntk_alibi.models"),
        ("load", ": from ntk_alibi.models import load"),
        ("evaluate", ": from ntk_alibi.evaluation import evaluate"),
        ("zzzz", ""),
        ("__wrapped__", ""),
    ],
)
def test_a_misspelt_name_is_told_the_right_one(name: str, advice: str) -> None:
    code = f"import ntk_alibi as na\ntry: na.{name}\nexcept AttributeError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    expected = f"module 'ntk_alibi' has no attribute {name!r}{advice}\n"
    assert done.stdout == expected, done.stderr


def test_importing_reports_needs_no_pandas() -> None:
    code = "import sys, ntk_alibi.evaluation.report; print({'pandas', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_subcommands_are_there(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        cli.main([name, "--help"])  # help names it on stdout, errors go to stderr
    assert f"usage: ntk-alibi {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "signature", re.sub(r"\n +", " ", SIGNATURES.strip()).split("\n"), ids=lambda s: s.split("(")[0]
)
def test_parameters_and_defaults_are_as_before(signature: str) -> None:
    """New parameters may be added if calls can leave them out."""
    path = signature.split("(")[0]
    now = inspect.signature(resolve(path))
    added = [
        parameter.name
        for parameter in now.parameters.values()
        if (
            parameter.kind is parameter.VAR_KEYWORD
            or (
                parameter.kind is parameter.KEYWORD_ONLY
                and parameter.default is not parameter.empty
            )
        )
        and not re.search(rf"\b{parameter.name}\b", signature)
    ]
    assert path + written(resolve(path), without=added) == signature

"""Blocks of keys that are proven not to matter, for causal biases with slopes, from block norms.

Let s_ij be the scores in units of log 2, measured from that of a centre z, which changes no weight:
s_ij = c q_i.(k_j - z) + bias_ij. For a block I of queries and a block J of keys behind it, at
distance d or more, with q = max |q_i|, k = max |k_j - z| and the least slope m of the block,

    s_ij <= c q k - m d,    mass of J <= 2^(c q k - m d) min(128, 1 / (1 - 2^-m))

where positions are columns, and 128 in place of the minimum elsewhere. The keys near a query, those
of the 256 columns up to the block's last one, give a lower bound of its sum, l_i. The blocks whose
bounds, divided by 2^(min l_i) and added up from the least one on, stay within eps are left out: all
that is left out weighs at most eps of the sum over what is kept. docs/exactness.md has
the proof, and docs/gpu.md says where this form of it differs.
"""

from __future__ import annotations

import math

import torch

from ntk_alibi import _core
from ntk_alibi.fused.call import AttentionCall
from ntk_alibi.torch.devices.block_masks import BLOCK, in_blocks
from ntk_alibi.torch.devices.score_mods import HIDDEN, LAST, Numbers

#: Columns of keys whose scores bound a query's sum from below: its own block and the one before.
NEAR = 2 * BLOCK

#: Numbers of scores that exist at one time, 64 MiB in float32.
AT_ONCE = 2**24

#: The most blocks of all rows and heads. FlexAttention's lists of them take 16 bytes a block, twice
#: that for a backward pass.
MOST_BLOCKS = 2**27

#: Types of devices that have no float64, or may have none.
WITHOUT_FLOAT64 = ("mps", "xpu")

#: Relative error of a norm of up to 256 channels.
OF_NORM = 2.0**-16

#: Relative error of products whose factors were rounded to TF32's 11 bits.
TF32 = 2.0**-10

_LOG2E = math.log2(math.e)


def can_certify(call: AttentionCall) -> bool:
    """Return whether there are bounds for a call: a causal bias of slopes, and enough queries."""
    bias, (batch, heads, queries, keys) = call.bias, call.problem.shape
    blocks = -(-queries // BLOCK) * -(-keys // BLOCK)
    return (
        call.skip_tolerance is not None
        and bias.left is not None
        and not bias.exempt
        and not call.problem.mask.sees_ahead
        and BLOCK < queries <= keys
        and batch * heads * blocks <= MOST_BLOCKS
        and call.query.device.type not in WITHOUT_FLOAT64
    )


@torch.no_grad()
def kept_blocks(call: AttentionCall, numbers: Numbers) -> torch.Tensor:
    """Return a mask of the blocks to keep, (batch, heads, blocks of queries, blocks of keys).

    No number of a tensor is read on the host.

    Args:
        call: a call that `can_certify`.
        numbers: its captured numbers, for lengths that may be padded.
    """
    runs = max(AT_ONCE // max(call.query.shape[0] * call.query.shape[2] * NEAR * call.group, 1), 1)
    kept = []
    for begin in range(0, call.key.shape[1], runs):
        heads = slice(begin, min(begin + runs, call.key.shape[1]))
        kept.append(_of_heads(call.of_key_heads(heads), numbers))
    return torch.cat(kept, dim=1)


def _of_heads(call: AttentionCall, numbers: Numbers) -> torch.Tensor:
    """Return the mask of some heads, whose keys are copied to float32 for the time being."""
    heads = call.problem.shape[1]
    at_queries, at_keys = numbers["query_positions"], numbers["key_positions"]
    rows, columns = at_queries.shape[1], at_keys.shape[1]
    real = at_keys >= 0
    key = call.key.float()
    centre = torch.where(key.isfinite(), key, 0.0).mean(dim=2, keepdim=True)
    key = torch.nn.functional.pad(key - centre, (0, 0, 0, columns - key.shape[2]))
    query = call.query.float()
    if call.factors is not None:
        query = query * call.factors[..., None]
    c = abs(call.scale) * _LOG2E
    slopes = {name: x.double() * _LOG2E for name, x in call.bias.slopes.items()}
    query_norms = in_blocks(_norms(query), 0.0, 2).amax(-1)
    key_norms = torch.where(real[:, None], _norms(key), 0.0)
    key_norms = in_blocks(key_norms, 0.0, 2).amax(-1)
    key_norms = key_norms.repeat_interleave(heads // key_norms.shape[1], 1)
    # A bound of c |q| |k| of the keys themselves, to which the rounding of scores is relative.
    reach = key_norms.amax(-1, keepdim=True) + _norms(centre).amax(dim=(1, 2))[:, None, None]
    size = c * query_norms * reach
    least_slope = _least_slopes(slopes, rows)
    low = _lower_bounds(call, numbers, query, key, slopes)
    roundings = call.query.shape[3] + _core.extra_score_roundings
    unit = roundings * 2.0**-24 + 2 * _product_rounding(call.query)
    low = low - unit * size - _core.exp2_and_sum_error
    nearest = in_blocks(at_queries, LAST).amin(-1)[:, None, :, None]
    farthest = in_blocks(torch.where(real, at_keys, HIDDEN), HIDDEN).amax(-1)[:, None, None, :]
    distance = (nearest - farthest).clamp(min=0).double()
    slope = least_slope[..., None]
    bound = c * query_norms[..., None] * key_norms[:, :, None, :] - slope * distance
    bound = bound + _log_count(call, least_slope)[..., None]
    bound = bound + 2.0**-40 * bound.abs() - low[..., None]
    # A slope below 0 proves nothing, and NaN stays on the side of blocks that are kept.
    bound = torch.where(slope >= 0, bound, torch.inf)
    near = _near_blocks(rows, columns, call)
    bound = torch.where(near, torch.inf, bound)
    least_first, order = bound.nan_to_num(nan=torch.inf, posinf=torch.inf).sort(dim=-1)
    total = torch.exp2(least_first).cumsum(-1) * (1 + 2.0**-30)
    dropped = torch.zeros_like(total, dtype=torch.bool)
    share = _core.dropped_share(call.skip_tolerance)
    return ~dropped.scatter(-1, order, total <= share)


def _lower_bounds(
    call: AttentionCall,
    numbers: Numbers,
    query: torch.Tensor,
    key: torch.Tensor,
    slopes: dict[str, torch.Tensor],
) -> torch.Tensor:
    """Return for each block a lower bound of log2 of its queries' sums over the keys near them."""
    batch, heads, queries, _ = call.problem.shape
    rows = numbers["query_positions"].shape[1]
    count = -(-rows // BLOCK)
    row = torch.arange(count * BLOCK, device=query.device).clamp(max=queries - 1)
    row = row.reshape(count, BLOCK)
    runs = max(AT_ONCE // max(batch * heads * BLOCK * NEAR, 1), 1)
    bounds = [_of_blocks(call, numbers, query, key, slopes, part) for part in row.split(runs)]
    return torch.cat(bounds, dim=2)


def _of_blocks(
    call: AttentionCall,
    numbers: Numbers,
    query: torch.Tensor,
    key: torch.Tensor,
    slopes: dict[str, torch.Tensor],
    row: torch.Tensor,
) -> torch.Tensor:
    """Return the lower bounds of some blocks of queries, whose rows are (blocks, BLOCK)."""
    queries, keys = call.problem.shape[2:]
    column = row[:, -1:] + (keys - queries) + torch.arange(1 - NEAR, 1, device=query.device)
    inside = column >= 0
    column = column.clamp(min=0)
    near = key[:, :, column].repeat_interleave(call.group, 1)  # (batch, heads, blocks, NEAR, dim)
    scores = (query[:, :, row] @ near.mT) * (call.scale * _LOG2E)

    def of_rows(name: str) -> torch.Tensor:
        x = numbers[name]
        return x[:, row][:, None, ..., None]

    at_keys = numbers["key_positions"][:, column][:, None, :, None]
    distance = of_rows("query_positions") - at_keys
    seen = (at_keys >= of_rows("first_seen")) | (at_keys < numbers["sink"])
    seen = seen & (at_keys >= 0) & (at_keys <= of_rows("last_seen")) & inside[:, None]
    bias = _bias(call, slopes, row, distance.clamp(min=0))
    scores = torch.where(seen, scores.double() - bias, -torch.inf)
    sums = torch.logsumexp(scores * math.log(2.0), dim=-1) * _LOG2E
    return sums.amin(-1)


def _bias(
    call: AttentionCall, slopes: dict[str, torch.Tensor], row: torch.Tensor, distance: torch.Tensor
) -> torch.Tensor:
    """Return what the bias takes from the scores near queries, at distances of 0 and more."""

    def of_rows(name: str) -> torch.Tensor:
        x = slopes[name]
        return (x[:, :, row] if x.shape[2] > 1 else x[:, :, None])[..., None]

    left = torch.where(distance > 0, of_rows("left"), 0.0)
    if call.bias.far_left is None:
        return left * distance
    near = distance.clamp(max=call.bias.knee)
    finite = torch.where(left.isinf(), 0.0, left) * near + of_rows("far_left") * (distance - near)
    return torch.where(left.isinf(), torch.inf, finite)


def _least_slopes(slopes: dict[str, torch.Tensor], rows: int) -> torch.Tensor:
    """Return the least slope of each block, before a knee or beyond, in units of log 2."""
    every = [slopes[name] for name in ("left", "far_left") if name in slopes]
    least = every[0] if len(every) == 1 else torch.minimum(*every)
    if least.shape[2] == 1:
        return least
    return in_blocks(least, math.inf, 2).amin(-1)


def _log_count(call: AttentionCall, slope: torch.Tensor) -> torch.Tensor:
    """Return log2 of how much a block holds at most, in units of its largest weight."""
    count = torch.full_like(slope, BLOCK)
    if call.problem.plain:  # no two keys are at the same distance
        decay = -torch.expm1(-slope.clamp(min=0) * math.log(2.0))
        count = torch.minimum(count, (1 + 2.0**-40) / decay)
    return torch.log2(count)


def _near_blocks(rows: int, columns: int, call: AttentionCall) -> torch.Tensor:
    """Return the blocks of keys with a column near a query, or ahead of it, of each block."""
    queries, keys = call.problem.shape[2:]
    last_row = (torch.arange(-(-rows // BLOCK), device=call.query.device) + 1) * BLOCK - 1
    first = last_row.clamp(max=queries - 1) + (keys - queries) + 1 - NEAR
    end = (torch.arange(-(-columns // BLOCK), device=call.query.device) + 1) * BLOCK
    return end > first[:, None]


def _norms(x: torch.Tensor) -> torch.Tensor:
    """Return bounds of the norms of float32 rows, in float64."""
    norms: torch.Tensor = torch.linalg.vector_norm(x, dim=-1).double()
    return norms * (1 + OF_NORM) + _core.underflowed_norm


def _product_rounding(example: torch.Tensor) -> float:
    """Return the relative error of the factors of products, as torch's settings allow it."""
    if example.device.type == "cpu":
        return 0.0
    chosen = torch.backends.cuda.matmul.fp32_precision
    if chosen == "none":
        try:
            chosen = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
        except RuntimeError:  # torch's newer settings are in force, which the older do not express
            chosen = "tf32"
    return 0.0 if chosen == "ieee" else TF32

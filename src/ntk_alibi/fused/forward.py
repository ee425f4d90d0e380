"""Forward pass on the compiled core. Autograd and vmap are handled in torch/operator.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks
from ntk_alibi.fused import checks
from ntk_alibi.fused.kernel_call import KernelCall
from ntk_alibi.fused.key_norms import KeyNorms
from ntk_alibi.fused.merge import merge
from ntk_alibi.fused.options import Options
from ntk_alibi.fused.rotated import attend_rotated, needs_rotation, resolve_dynamic_slopes


@dataclass(frozen=True)
class Stats:
    """How much of the keys `attention` read, in blocks of 64 keys by tiles of some queries.

    Attributes:
        visited: int64 (batch, heads), blocks read.
        visible: int64 (batch, heads), blocks that the mask leaves.
    """

    visited: NDArray[np.int64]
    visible: NDArray[np.int64]

    @property
    def share(self) -> NDArray[np.float64]:
        """Visited of visible blocks, (batch, heads); 1 where none is visible."""
        share: NDArray[np.float64] = np.where(
            self.visible == 0, 1.0, self.visited / np.maximum(self.visible, 1)
        )
        return share


def forward(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    options: Options,
    *,
    key_norms: KeyNorms | None = None,
    return_logsumexp: bool = False,
    return_stats: bool = False,
) -> Any:
    """`attention` of numbers, whatever else torch knows about them."""
    dtype = _checks.attention_shapes(query, key, value)
    if needs_rotation(options):
        _checks.at_most_one(rotary=options.rotary, key_norms=key_norms)
        found = _rotated_attention(query, key, value, bias, options, key_norms, return_stats)
        asked = (True, return_logsumexp, return_stats)
        wanted = [x for x, wish in zip(found, asked, strict=False) if wish]
        return tuple(wanted) if len(wanted) > 1 else wanted[0]
    call = KernelCall.checked(query, key, value, bias, options, dtype)
    parts = call.parts()
    if key_norms is not None:
        plain = options.key_padding_mask is None and options.key_positions is None
        checks.key_norms(key_norms, key.shape, consecutive=plain and len(parts) == 1)
    counts = np.zeros((*query.shape[:2], 2), np.int64) if return_stats else None
    norms = None if key_norms is None else key_norms._norms
    if len(parts) == 1:
        output, logsumexp = call.attend(parts[0], counts=counts, norms=norms, log=return_logsumexp)
    else:
        outputs, logs = zip(*(call.attend(part, counts=counts) for part in parts), strict=True)
        output, log = merge(outputs, [_arrays.like(x, query) for x in logs])
        logsumexp = _arrays.to_numpy(log)
    results: list[Any] = [output]
    if return_logsumexp and logsumexp is not None:
        results.append(_arrays.like(logsumexp, query))
    if counts is not None:
        results.append(Stats(counts[..., 0], counts[..., 1]))
    return tuple(results) if len(results) > 1 else output


def _rotated_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    options: Options,
    key_norms: KeyNorms | None,
    return_stats: bool,
) -> tuple[Any, ...]:
    """Output, logsumexp and, if asked for, stats of queries and keys that are rotated first."""

    def attend(*arguments: Any) -> Any:
        return forward(
            *arguments, key_norms=key_norms, return_logsumexp=True, return_stats=return_stats
        )

    bias, options = resolve_dynamic_slopes(query, key, bias, options)
    outputs, logsumexps, *stats = attend_rotated(attend, query, key, value, bias, options)
    module = _arrays.namespace(query)
    output = _arrays.cast_like(module.concatenate(outputs, 2), query)
    logsumexp = module.concatenate(logsumexps, 2)
    if not return_stats:
        return output, logsumexp
    visited, visible = (sum(getattr(part, x) for part in stats[0]) for x in ("visited", "visible"))
    return output, logsumexp, Stats(visited, visible)

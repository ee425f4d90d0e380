"""Sinks of a patch: the first tokens, directly before the window."""

from __future__ import annotations

from ntk_alibi import _arrays
from ntk_alibi._backends import backend_of
from ntk_alibi.masks import ALL, EVERYTHING, Cut, Problem


def ranges_of(problem: Problem) -> list[tuple[slice, Problem]]:
    """Return the ranges of keys to attend to, and the problem of each.

    Sinks are the first tokens of a text. Tokens that have left the window are evicted, and
    distances count the remaining tokens only, so sinks stay directly before the window, as in a
    cache of sinks and window (Xiao et al. 2023, arXiv 2309.17453, 3.2). Distances jump between
    window and sinks by one number for each query; shifted positions of the queries express it.
    """
    mask = problem.mask
    if mask.sink == 0:
        return [(ALL, problem)]
    sink, limits = mask.sink, mask._replace(sink=0)
    batch, _, _, columns = problem.shape
    of_sink = EVERYTHING if mask.causal else mask  # whose window limits the sinks ahead
    like = problem.key_positions if _arrays.is_tensor(problem.key_positions) else None
    queries, keys = problem.positions(like)
    start = mask.interval(queries)[0].clip(min=0)
    nearer = queries - (start - sink).clip(min=0)
    nearer = nearer.int() if like is not None else nearer.astype("int32")
    if problem.plain:
        first, beyond = slice(0, sink), slice(sink, columns)
        to_first = problem.cut(Cut(keys=first))
        to_first = to_first._replace(mask=of_sink, query_positions=nearer)
        if int(start[0, 0]) >= sink:
            return [(ALL, problem._replace(mask=limits)), (first, to_first)]
        to_window = problem._replace(mask=limits).cut(Cut(keys=beyond))
        return [(beyond, to_window), (first, to_first)]
    real = problem.key_padding_mask
    if real is None:
        real = backend_of(keys).xp.broadcast_to(keys >= 0, (batch, columns))
    else:
        real = backend_of(like).convert(real, "bool")
    of_window, of_sinks = real & (keys >= sink), real & (keys < sink)
    if like is None:
        of_window, of_sinks = of_window.view("uint8"), of_sinks.view("uint8")
    return [
        (ALL, problem._replace(mask=limits, key_padding_mask=of_window)),
        (
            ALL,
            problem._replace(mask=of_sink, query_positions=nearer, key_padding_mask=of_sinks),
        ),
    ]

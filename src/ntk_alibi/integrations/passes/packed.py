"""Passes of packed rows without padding: several texts in a row."""

from __future__ import annotations

import torch

from ntk_alibi.integrations.passes.base import Pass
from ntk_alibi.integrations.passes.given import Given
from ntk_alibi.masks import Problem


def begin(given: Given) -> Pass:
    """Return the pass of rows whose tokens have segments."""
    segments, (batch, queries, _) = given.segments, given.sizes
    keys = segments.keys.shape[1]
    shape, limits = (batch, given.attend.rule.heads, queries, keys), given.limits(keys)
    ids = {"segment_ids": segments.keys, "query_segment_ids": segments.queries}
    problem = Problem.checked(shape, limits, None, None, None, **ids)
    real = torch.ones((batch, keys), dtype=torch.bool, device=segments.keys.device)
    forward_pass = Pass(given, real, problem)
    forward_pass.cache = segments.cache
    return forward_pass

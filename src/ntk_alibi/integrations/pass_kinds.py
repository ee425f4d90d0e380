"""The pass of what a layer got: of rows of one text each, with a cache or not, or of pairs.

Cross-attention, a bounded cache, a mask of four dimensions and plain rows each have a way to a
`Problem`; `begin` chooses by what the first layer of the pass got.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch.nn import functional as F

from ntk_alibi import _checks
from ntk_alibi._torch_state import JIT, find_tracer, has_values, is_followed, is_tracing
from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.integrations.biases import biases_of
from ntk_alibi.integrations.caches import Bounded
from ntk_alibi.integrations.caller_masks import PairMask, check_shape, read_pairs, shown
from ntk_alibi.integrations.forward_pass import LayerCall, Pass, Sizes
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.integrations.tokens import Tokens
from ntk_alibi.masks import EVERYTHING, Mask, Problem

BIDIRECTIONAL = Mask(causal=False)

BEGAN_WITH_PADDING = (
    "attention_mask must be given again with a WindowCache whose rows began with padding, got None"
)


class PassInputs(NamedTuple):
    """What the first layer of a pass got.

    Attributes:
        attend: the `Attend` of the layer.
        mask: the mask, or None.
        sizes: batch, new tokens, and keys without the keys of a cache.
        device: the device of the queries.
        cache: the cache before this pass, or None.
        past: the number of tokens that the cache has seen.
        settings: the choices of the patch in force.
        own: biases in place of slopes, by layers, or by None for all layers; bias objects, and
            modules and functions that return them.
        rule: the rule of the model's slopes.
        masks_pairs: whether the mask alone says which keys each query sees. Layers of others add a
            mask of keys alone to a causal one of their own.
    """

    attend: Any
    mask: Any
    sizes: Sizes
    device: torch.device
    cache: Any
    past: int
    settings: Settings
    own: Mapping[Any, Any]
    rule: ModelSlopes
    masks_pairs: bool

    @property
    def name(self) -> str:
        """The name of the mask in messages: layers of transformers get the model's argument."""
        if self.attend.crosses:
            return "encoder_attention_mask"
        return "mask" if self.attend.family.code is None else "attention_mask"

    def count_places(self) -> int:
        """Return the number of keys that the layer will get: of a static cache, all its places."""
        _, queries, keys = self.sizes
        if self.cache is None:
            return keys
        return int(self.cache.get_mask_sizes(queries, self.attend.index)[0])

    def limits(self, end: int) -> Mask:
        """Return which of the keys before `end` queries see by their positions."""
        mask = self.settings.mask
        if not self.attend.causal:
            return mask._replace(causal=False)
        limited = mask.interval(end - 1)[0] > mask.sink  # the last query does not see all
        return mask if limited else EVERYTHING


def _inputs_of(attend: Any, tokens: Tokens, call: LayerCall) -> PassInputs:
    """Return what a layer got, checked."""
    patch, family = attend.patch, attend.family
    model, settings = patch.model, patch.settings
    _checks.check_no_context_parallel()
    if attend.causal and not getattr(getattr(model, "config", None), "is_causal", True):
        raise ValueError(
            f"config.is_causal must be True for a patched {type(model).__name__}, got False"
        )
    if call.weights or tokens.weights:
        settings = replace(settings, attention="eager")
    if tracer := find_tracer():
        _check_tracer(tracer, family, settings)
    own: dict[Any, Any] = {}
    if settings.bias is not None and not attend.crosses:
        own = biases_of(model, settings.bias)
    if family.decoder:
        attend.check_heads()
    mask, cache, pairs = tokens.mask, call.cache, False
    if getattr(mask, "ndim", 2) == 4:
        of_keys = tuple(mask.shape[1:3]) == (1, 1)
        pairs = not of_keys or (attend.causal and family.code is not None)
    past = 0 if cache is None else int(cache.get_seq_length(attend.index))
    of_call = mask, call.sizes, call.query.device, cache
    return PassInputs(attend, *of_call, past, settings, own, patch.rule, pairs)


def _check_tracer(tracer: str, family: Any, settings: Settings) -> None:
    """Refuse what traces a form that reads the mask."""
    if tracer == JIT or settings.attention != "eager":
        advice = "use patch(model, method, attention='traceable')"
        if not family.decoder:
            advice = "take the model without patch"
        raise ValueError(
            f"attention must be 'traceable' where {tracer} traces a patched model, got "
            f"{settings.attention!r}, which reads the mask: {advice}"
        )


def begin(attend: Any, tokens: Tokens, call: LayerCall) -> Pass:
    """Check the state of the model and of torch, and return the pass of what a layer got.

    Args:
        attend: the `Attend` of the layer.
        tokens: the tokens.
        call: the call of the layer.
    """
    inputs = _inputs_of(attend, tokens, call)
    if inputs.attend.crosses:
        return _crossing(inputs)
    if isinstance(inputs.cache, Bounded):
        return _bounded(inputs)
    if inputs.masks_pairs:
        return _of_pairs(inputs)
    return _of_rows(inputs)


def _of_rows(inputs: PassInputs) -> Pass:
    """Return the pass of rows whose mask, if any, says which keys are real."""
    (_, queries, keys), mask, places = inputs.sizes, inputs.mask, inputs.count_places()
    end = inputs.past + keys
    of_table = inputs.attend.table is not None and inputs.cache is not None
    if of_table and getattr(mask, "ndim", 0) == 2:
        # To transformers the tokens that a decoder's mask does not reach are hidden.
        mask = F.pad(mask, (0, max(end - mask.shape[1], 0)))
    real = real_keys(inputs, mask, end, places)
    at, unpadded = slice(end - queries, end), mask is None and places == end
    limits = inputs.limits(end)
    problem = problem_of_rows(real[:, :end], at, inputs.rule, limits, unpadded=unpadded)
    if places > real.shape[1]:
        real = F.pad(real, (0, places - real.shape[1]))
    return Pass(inputs, real, problem)


def real_keys(inputs: PassInputs, mask: Any, keys: int, places: int = 0) -> torch.Tensor:
    """Return a mask of padding as (batch, keys), True if real.

    Args:
        inputs: what the layer got.
        mask: None, a mask (batch, keys) that is not 0 for real keys, or one of keys alone in four
            dimensions, (1 or batch, 1, 1, keys), boolean or of values to add to scores.
        keys: the number of keys that the last query may see.
        places: the number of keys that a static cache has room for; a mask may have columns for
            those behind the last query, too.
    """
    batch, device = inputs.sizes[0], inputs.device
    if mask is None:
        return torch.ones((batch, keys), dtype=torch.bool, device=device)
    name, shape = inputs.name, tuple(mask.shape)
    _checks.check_plain(name, mask)
    if len(shape) == 4 and shape[0] in (1, batch) and shape[1:] == (1, 1, keys):
        return shown(mask, name)[:, 0, 0].to(device).expand(batch, keys)
    if shape != (batch, keys):
        check_shape(mask, name, (batch, keys), places)
    return cast(torch.Tensor, mask.to(device) != 0)


def _bounded(inputs: PassInputs) -> Pass:
    """Return the pass of rows with a bounded cache."""
    if inputs.masks_pairs:
        raise ValueError(
            "attention_mask must have shape (batch, keys) with a WindowCache, got "
            f"{tuple(inputs.mask.shape)}"
        )
    _check_window(inputs.cache, inputs.settings.mask)
    real, skipped = _held(inputs, inputs.cache)
    queries, held = inputs.sizes[1], real.shape[1]
    limits = inputs.limits(inputs.past + queries)
    if queries == 1:  # which sees all keys that are held
        limits = Mask(causal=inputs.attend.causal)
    at, unpadded = slice(held - queries, held), inputs.mask is None
    problem = problem_of_rows(real, at, inputs.rule, limits, skipped, unpadded=unpadded)
    return Pass(inputs, real, problem)


def _check_window(cache: Any, rule: Mask) -> None:
    """Check that a cache holds what a patch shows."""
    held, seen = (cache.shared.window, cache.shared.sink), (rule.window, rule.sink)
    if held != seen or rule.causal_block is not None:
        raise ValueError(
            f"{CACHE} must hold what the patch shows, got WindowCache{held} with "
            f"window={seen[0]}, sink={seen[1]}, causal_block={rule.causal_block}"
        )


def _held(inputs: PassInputs, cache: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the mask of the keys that the cache will return, and rows' evicted tokens.

    A single query sees all of these keys, at their distances in the cache; each of several queries
    sees only some of them.
    """
    (batch, queries, _), past, device = inputs.sizes, inputs.past, inputs.device
    shared, total = cache.shared, past + queries
    cache.expect(total)
    keys = cache.get_mask_sizes(queries, inputs.attend.index)[0]
    if inputs.mask is None:
        if past and shared.padding is not None:
            raise ValueError(BEGAN_WITH_PADDING)
        shared.padding, evicted = None, total - keys
        real = torch.ones((batch, keys), dtype=torch.bool, device=device)
        return real, torch.full((batch,), evicted, device=device) if evicted > 0 else None
    mask = real_keys(inputs, inputs.mask, total)
    counts = mask.sum(dim=1)
    last_columns = torch.arange(total, device=device) >= total - counts[:, None]
    if rows_with_holes := (mask != last_columns).any(dim=1).nonzero().flatten().tolist():
        raise ValueError(
            "attention_mask must have padding on the left only with a WindowCache, got 0 "
            f"behind 1 in rows {rows_with_holes}"
        )
    unpadded = bool((counts == total).all())
    if past and shared.padding is not None and unpadded:
        raise ValueError(BEGAN_WITH_PADDING)
    shared.padding = None if unpadded else total - counts
    skipped = (counts - keys).clamp(min=0)
    return mask[:, total - keys :], skipped if bool(skipped.any()) else None


def _of_pairs(inputs: PassInputs) -> Pass:
    """Return the pass of tokens whose mask alone says which keys each query sees."""
    batch, queries, keys = inputs.sizes
    end, places = inputs.past + keys, inputs.count_places()
    shape = batch, inputs.rule.heads, queries, end
    read = read_pairs(inputs.mask, inputs.name, shape, places)
    holes = inputs.rule.counts_holes
    problem = problem_of_pairs(read, shape, inputs.limits(end), counts_holes=holes)
    real = F.pad(read.real_keys(batch), (0, places - end))
    # Ahead of a query, a decoder's bias goes on by the same slope.
    return Pass(inputs, real, problem, "falling" if inputs.attend.causal else "symmetric")


def _crossing(inputs: PassInputs) -> Pass:
    """Return the pass of cross-attention, which the steps of a generation share.

    transformers makes a mask anew for each step, so that it is compared by its values.
    """
    batch, queries, keys = inputs.sizes
    if inputs.masks_pairs:
        shape = batch, inputs.rule.heads, queries, keys
        read = read_pairs(inputs.mask, inputs.name, shape, keys)
        return Pass(inputs, read.real_keys(batch), problem_of_pairs(read, shape, BIDIRECTIONAL))
    real = real_keys(inputs, inputs.mask, keys)
    of = inputs.settings, queries, inputs.mask is None
    memory, keeps = inputs.attend.patch.memory, real.is_cpu and not is_followed(real)
    if keeps and memory.crossing is not None:
        made_of, last, forward_pass = memory.crossing
        if made_of == of and torch.equal(last, real):
            return cast(Pass, forward_pass)
    at, unpadded = slice(0, queries), inputs.mask is None
    problem = problem_of_rows(real, at, inputs.rule, BIDIRECTIONAL, unpadded=unpadded)
    forward_pass = Pass(inputs, real, problem)
    if keeps:
        memory.crossing = of, real.clone(), forward_pass  # real may be a user's mask
    return forward_pass


def problem_of_rows(
    real: torch.Tensor,
    at: slice,
    rule: ModelSlopes,
    mask: Mask,
    skipped: torch.Tensor | None = None,
    *,
    unpadded: bool = False,
) -> Problem:
    """Return the problem of rows.

    Args:
        real: (batch, keys), True for real keys.
        at: the columns of the queries, up to the last key.
        rule: the rule of the model's slopes.
        mask: the rule by which queries see positions.
        skipped: (batch,), real tokens that are neither among the keys nor queries, or None: a
            bounded cache evicted them between the sinks and the window.
        unpadded: whether all keys are known to be real. On other devices than the CPU masks are not
            read: the host would have to wait for them. What torch traces has no values to count.
    """
    batch, keys = real.shape
    shape = batch, rule.heads, at.stop - at.start, keys
    plain = not is_tracing()
    plain = plain and (unpadded or (real.is_cpu and has_values(real) and bool(real.all())))
    if plain and skipped is None:
        return Problem(shape, mask)
    if not mask.causal:  # distances between columns; queries see all keys of their row
        return Problem.checked(shape, mask, real, None, None, like=real)
    counts, seen = None, real.cumsum(dim=1)
    if skipped is not None:
        evicted = skipped.to(real.device)[:, None]
        counts = (seen[:, -1:] + evicted)[:, 0]
        if plain and mask == EVERYTHING:
            return Problem(shape, mask, counts=counts)
    columns = torch.arange(keys, device=real.device)
    first = real.int().argmax(dim=1, keepdim=True)
    positions = columns - first if rule.counts_holes else seen - 1
    if skipped is not None and mask != EVERYTHING:
        positions = positions + torch.where(columns < mask.sink, 0, evicted)
    positions = positions.clamp(min=0)
    padding = None if plain else real
    problem = Problem.checked(shape, mask, padding, positions[:, at], positions, like=positions)
    return problem._replace(counts=counts)


def problem_of_pairs(
    read: PairMask, shape: tuple[int, ...], limits: Mask, *, counts_holes: bool = True
) -> Problem:
    """Return the problem of a pass with a mask.

    Args:
        read: the mask.
        shape: batch, heads, queries and keys.
        limits: the window of the patch; sinks, and whether queries see keys behind alone.
        counts_holes: whether columns of keys that no query sees count between others.
    """
    batch, _, queries, keys = shape
    real, positions, at_keys = None, None, None
    if read.real is not None:  # a key that no query sees is padding
        real = read.real.expand(batch, keys)
        columns = torch.arange(keys, device=real.device)
        first = real.int().argmax(dim=1, keepdim=True)
        at_keys = (columns - first if counts_holes else real.cumsum(dim=1) - 1).clamp(min=0)
        positions = at_keys[:, keys - queries :]
    like = read.visible.mask
    problem = Problem.checked(shape, limits, real, positions, at_keys, like=like)
    if limits.causal and _sees_ahead(problem, like):
        problem = problem._replace(mask=limits._replace(causal=False))
    return problem._replace(visible=read.visible)


def _sees_ahead(problem: Problem, seen: torch.Tensor) -> bool:
    """Return whether a query may see a key ahead of its position."""
    if not seen.is_cpu or not has_values(seen):
        return True
    at_queries, at_keys = problem.positions(seen)
    ahead = at_keys[:, None] > at_queries[:, :, None]
    return bool((seen & ahead[:, None]).any())

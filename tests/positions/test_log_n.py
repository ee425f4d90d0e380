"""Log-n scaling."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

import ntk_alibi as na
from attention_calls import Call, calls
from attention_checks import UNIT, inputs
from rotary_cases import masked


@given(call=calls(), train_length=st.integers(2, 90))
def test_log_n_counts_what_is_seen(call: Call, train_length: int) -> None:
    names = ("causal", "window", "causal_block", "sink", "key_padding_mask", "query_positions",
             "key_positions")  # fmt: skip
    options = {name: call.options[name] for name in names if name in call.options}
    queries, keys = call.query.shape[2], call.key.shape[2]
    factors = na.log_n_scale(queries, keys, train_length, **options)
    seen = masked(call)[:, 0]
    assert factors.dtype == np.float32
    assert factors.shape[0] in (1, len(seen))
    what = na.reference.log_n_factors(seen, train_length)
    np.testing.assert_allclose(np.broadcast_to(factors, what.shape), what, rtol=2 * UNIT)
    tensors = {
        name: torch.as_tensor(x) if isinstance(x, np.ndarray) else x for name, x in options.items()
    }
    theirs = na.log_n_scale(queries, keys, train_length, **tensors)
    np.testing.assert_allclose(np.asarray(theirs), factors, rtol=2 * UNIT)


def test_log_n_changes_nothing_up_to_the_training_length() -> None:
    arrays = inputs(2, 4, 2, 64, 64, 16)
    plain, scaled = (na.attention(*arrays, na.ALiBi(4), log_n=n) for n in (None, 64))
    np.testing.assert_array_equal(plain, scaled)
    assert (na.attention(*arrays, na.ALiBi(4), log_n=63) != plain)[:, :, -1].any()


def test_log_n_takes_key_norms() -> None:
    query, key, value = inputs(1, 2, 2, 1, 300, 16)
    norms = na.KeyNorms().update(key)
    plain, kept = (na.attention(query, key, value, log_n=8, key_norms=n) for n in (None, norms))
    np.testing.assert_array_equal(plain, kept)

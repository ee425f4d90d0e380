"""Attention and its gradients, computed with the matrix of all pairs."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ntk_alibi.reference.dropout import dropout_factors

Floats: TypeAlias = NDArray[np.float64]


def attention(
    query: Any, key: Any, value: Any, bias: ArrayLike = 0.0, scale: float | None = None, *,
    dropout: float = 0.0, seed: int = 0, mask: ArrayLike = True,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return softmax(scale q.k + bias) v and the logsumexp; scale = 1/sqrt(D) if None.

    query has shape (..., Q, D), key and value (..., K, D); bias and mask broadcast to
    (..., Q, K). A key is hidden where bias is -inf or mask is False. A query without a visible key
    has output 0 and logsumexp -inf. With dropout, the weights (batch, heads, Q, K) are finally
    multiplied by `dropout_factors`.
    """
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = scale * (query @ np.swapaxes(key, -1, -2)) + np.asarray(bias, np.float64)
    scores = np.where(mask, scores, -np.inf)
    largest = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isinf(largest), 0.0, largest))
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        logsumexp = (np.log(total) + np.where(np.isinf(largest), 0.0, largest))[..., 0]
    weights = weights / np.where(total == 0.0, 1.0, total)
    if dropout:
        weights = weights * dropout_factors(weights.shape, dropout, seed)
    return weights @ value, logsumexp


def attention_gradients(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike,
    output_gradient: ArrayLike,
    logsumexp_gradient: ArrayLike | None = None,
    scale: float | None = None,
    *,
    dropout: float = 0.0,
    seed: int = 0,
    mask: ArrayLike = True,
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the gradients of `attention` with respect to query, key, value and bias.

    p are the weights, z the factors of dropout (1 without it), o = (z p) v the output, do the
    gradient of o and dl the gradient of the logsumexp::

        ds_ij = p_ij (z_ij do_i.v_j - do_i.o_i + dl_i)
        dq = scale ds k;  dk = scale ds^T q;  dv = (z p)^T do

    The gradient of the bias is ds, of shape (batch, heads, queries, keys).
    """
    q, k, v, do = (np.asarray(x, np.float64) for x in (query, key, value, output_gradient))
    output, logsumexp = attention(q, k, v, bias, scale, dropout=dropout, seed=seed, mask=mask)
    scale = 1.0 / np.sqrt(q.shape[-1]) if scale is None else scale
    scores = scale * q @ k.swapaxes(-1, -2) + np.asarray(bias, np.float64)
    scores = np.where(mask, scores, -np.inf)
    empty = np.isneginf(logsumexp)
    weights = np.exp(scores - np.where(empty, 0.0, logsumexp)[..., None])
    correction = (do * output).sum(axis=-1)
    if logsumexp_gradient is not None:
        correction = correction - np.where(empty, 0.0, np.asarray(logsumexp_gradient, np.float64))
    factors = dropout_factors(weights.shape, dropout, seed) if dropout else np.ones(())
    ds = weights * (factors * (do @ v.swapaxes(-1, -2)) - correction[..., None])
    dv = (factors * weights).swapaxes(-1, -2) @ do
    return scale * ds @ k, scale * ds.swapaxes(-1, -2) @ q, dv, ds

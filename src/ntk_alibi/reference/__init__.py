"""Reference implementations: each formula as one float64 NumPy function, as its paper writes it.

The package is tested against them. They share no code with the compiled core, favour readability
over speed and materialise all intermediate results, so they suit small inputs only.
"""

from ntk_alibi.reference.biases import (
    bam,
    bialibi_bias,
    build_alibi_tensor,
    exempt_bias,
    forget_gates,
    halves_bias,
    kerple_log,
    kerple_power,
    knee_bias,
    linear_bias,
    sandwich,
    sinusoidal_embeddings,
    symmetric_bias,
)
from ntk_alibi.reference.dense_attention import (
    attention,
    attention_gradients,
)
from ntk_alibi.reference.masks import (
    distances,
    key_positions,
    streaming_distances,
    visible,
)
from ntk_alibi.reference.positions import (
    log_n_factors,
    rope,
    rope_ntk_base,
    xpos_scores,
)
from ntk_alibi.reference.precision import (
    rounded,
    total_variation,
)
from ntk_alibi.reference.slopes import (
    alibi_slopes,
    dynamic_factor,
    flat_heads_slopes,
    geometric_slopes,
    interpolated_slopes,
    max_bias_slopes,
    ntk_slopes,
    published_ntk_slopes,
    receptive_field,
)

__all__ = [
    "alibi_slopes",
    "attention",
    "attention_gradients",
    "bam",
    "bialibi_bias",
    "build_alibi_tensor",
    "distances",
    "dynamic_factor",
    "exempt_bias",
    "flat_heads_slopes",
    "forget_gates",
    "geometric_slopes",
    "halves_bias",
    "interpolated_slopes",
    "kerple_log",
    "kerple_power",
    "key_positions",
    "knee_bias",
    "linear_bias",
    "log_n_factors",
    "max_bias_slopes",
    "ntk_slopes",
    "published_ntk_slopes",
    "receptive_field",
    "rope",
    "rope_ntk_base",
    "rounded",
    "sandwich",
    "sinusoidal_embeddings",
    "streaming_distances",
    "symmetric_bias",
    "total_variation",
    "visible",
    "xpos_scores",
]

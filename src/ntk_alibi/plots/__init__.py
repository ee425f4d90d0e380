"""Pictures: each function draws what the package says into matplotlib axes, and returns these.

All take `ax=`, axes to draw into; without it a new pyplot figure is made, which notebooks show and
`ax.figure.savefig(path)` writes. Nothing is shown by itself. The look is the same everywhere, and
light or dark as the axes or matplotlib's settings are; `style` sets it for a block of code.
"""

from ntk_alibi.plots.attending import attention_map, blocks, intervals, mask
from ntk_alibi.plots.biases import bias_by_distance, bias_maps, receptive_field, slopes
from ntk_alibi.plots.precision import (
    alibi_rows,
    exact_positions,
    rounded_positions,
)
from ntk_alibi.plots.results import (
    accuracy_curves,
    accuracy_map,
    benchmark_curves,
    depth_figure,
    extrapolation_curves,
    perplexity_curves,
    study_figure,
)
from ntk_alibi.plots.style import style

__all__ = [
    "accuracy_curves",
    "accuracy_map",
    "alibi_rows",
    "attention_map",
    "benchmark_curves",
    "bias_by_distance",
    "bias_maps",
    "blocks",
    "depth_figure",
    "exact_positions",
    "extrapolation_curves",
    "intervals",
    "mask",
    "perplexity_curves",
    "receptive_field",
    "rounded_positions",
    "slopes",
    "study_figure",
    "style",
]

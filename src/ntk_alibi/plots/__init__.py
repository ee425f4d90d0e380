"""Pictures: each function draws into matplotlib axes and returns them.

A function draws into `ax=`, or into a new pyplot figure, which notebooks show and
`ax.figure.savefig(path)` writes. No function opens a window. All pictures share one style: new
figures are transparent, in colours for light and dark pages, and `style` sets a light or dark theme
for a block of code. In axes that you pass, the theme follows their background.
"""

from ntk_alibi.plots.attention_maps import attention_map, attention_maps
from ntk_alibi.plots.biases import bias_by_distance, bias_maps, receptive_field, slopes
from ntk_alibi.plots.masks import block_mask, blocks, intervals, mask
from ntk_alibi.plots.measurements import benchmark_curves, extrapolation_curves
from ntk_alibi.plots.precision import alibi_rows, exact_positions, rounded_positions
from ntk_alibi.plots.study import accuracy_curves, study_figure
from ntk_alibi.plots.style import style

__all__ = [
    "accuracy_curves",
    "alibi_rows",
    "attention_map",
    "attention_maps",
    "benchmark_curves",
    "bias_by_distance",
    "bias_maps",
    "block_mask",
    "blocks",
    "exact_positions",
    "extrapolation_curves",
    "intervals",
    "mask",
    "receptive_field",
    "rounded_positions",
    "slopes",
    "study_figure",
    "style",
]

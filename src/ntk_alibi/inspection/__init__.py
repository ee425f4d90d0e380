"""What biases and masks do, as arrays, and what notebooks show of them."""

from ntk_alibi.inspection.effects import (
    bias_by_distance,
    receptive_field,
    visible_intervals,
    weights,
)

__all__ = ["bias_by_distance", "receptive_field", "visible_intervals", "weights"]

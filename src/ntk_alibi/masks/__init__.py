"""What each query sees: masks, padding, positions and packed segments."""

from ntk_alibi.masks.block_mask import BlockMask, block_states, checked_block_mask
from ntk_alibi.masks.mask import EVERYTHING, Mask
from ntk_alibi.masks.problem import (
    AT_END,
    Problem,
    checked_alignment,
    checked_attention_mask,
    checked_key_padding_mask,
    checked_positions,
)
from ntk_alibi.masks.segments import Segment, SegmentIds, segment_ids_from_cu_seqlens

__all__ = [
    "AT_END",
    "EVERYTHING",
    "BlockMask",
    "Mask",
    "Problem",
    "Segment",
    "SegmentIds",
    "block_states",
    "checked_alignment",
    "checked_attention_mask",
    "checked_block_mask",
    "checked_key_padding_mask",
    "checked_positions",
    "segment_ids_from_cu_seqlens",
]

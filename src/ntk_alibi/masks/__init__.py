"""What each query sees: masks, padding, positions and packed segments."""

from ntk_alibi.masks.block_mask import BlockMask, block_states, checked_block_mask
from ntk_alibi.masks.cut import ALL, Cut
from ntk_alibi.masks.mask import EVERYTHING, Mask
from ntk_alibi.masks.problem import (
    AT_END,
    Problem,
    checked_alignment,
    checked_attention_mask,
    checked_key_padding_mask,
    checked_positions,
)
from ntk_alibi.masks.segments import SegmentIds, segment_ids_from_cu_seqlens

__all__ = [
    "ALL",
    "AT_END",
    "EVERYTHING",
    "BlockMask",
    "Cut",
    "Mask",
    "Problem",
    "SegmentIds",
    "block_states",
    "checked_alignment",
    "checked_attention_mask",
    "checked_block_mask",
    "checked_key_padding_mask",
    "checked_positions",
    "segment_ids_from_cu_seqlens",
]

// The blocks of keys that a tile sees.
#pragma once

#include "kernels/key_list.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

std::int64_t visible_blocks(const AttentionTile& tile);

// What the words of the tile's mask show of block b, as in TileMask::shown.
inline int shown_by_words(const AttentionTile& tile, std::int64_t b) {
  const TileMask& mask = tile.mask;
  if (mask.words == nullptr) return shown_to_all;
  if (mask.shown != nullptr) return mask.shown[b];
  std::uint64_t any = 0, all = ~std::uint64_t{0};
  for (int r = 0; r < tile.query_count; ++r) {
    any |= mask.words[r * mask.words_stride + b];
    all &= mask.words[r * mask.words_stride + b];
  }
  return shown_of(any, all, keys_in_block(tile.keys, b));
}

// Keys of a block, by their places in it.
struct KeyRange {
  int begin, end;

  bool holds(int first, int last) const { return first >= begin && last <= end; }
};

// The range of positions that a tile sees, from the extremes over its queries.
struct TileReach {
  std::int64_t first_seen_by_any, last_seen_by_any;
  std::int64_t first_seen_by_all, last_seen_by_all;
  std::int64_t least_query, greatest_query;
  std::int32_t sink_end;  // the greatest of all queries

  explicit TileReach(const AttentionTile& tile) {
    least_query = greatest_query = tile.query_positions[0];
    sink_end = tile.mask.sink_ends[0];
    for (int i = 0; i < tile.query_count; ++i) {
      const std::int64_t position = tile.query_positions[i];
      if (position < least_query) least_query = position;
      if (position > greatest_query) greatest_query = position;
      if (tile.mask.sink_ends[i] > sink_end) sink_end = tile.mask.sink_ends[i];
      const std::int64_t first = position - tile.mask.greatest_distances[i];
      const std::int64_t last = position - tile.mask.least_distances[i];
      if (i == 0) {
        first_seen_by_any = first_seen_by_all = first;
        last_seen_by_any = last_seen_by_all = last;
      }
      if (first < first_seen_by_any) first_seen_by_any = first;
      if (first > first_seen_by_all) first_seen_by_all = first;
      if (last > last_seen_by_any) last_seen_by_any = last;
      if (last < last_seen_by_all) last_seen_by_all = last;
    }
  }

  bool sees(const AttentionTile& tile, std::int64_t b) const {
    return shown_by_words(tile, b) > 0 && reaches(block_of(tile.keys, b));
  }
  // The same without the words.
  bool reaches(const KeyBlock& block) const {
    if (block.least_position > last_seen_by_any) return false;
    return block.greatest_position >= first_seen_by_any || block.least_position < sink_end;
  }
  // True if no block up to b is visible.
  bool ends_before(const AttentionTile& tile, std::int64_t b) const {
    const bool none = block_of(tile.keys, b).greatest_position < first_seen_by_any;
    return none && tile.keys.positions_rise && block_of(tile.keys, 0).least_position >= sink_end;
  }
  // True if no block from b on is visible.
  bool ends_behind(const AttentionTile& tile, std::int64_t b) const {
    return tile.keys.positions_rise && block_of(tile.keys, b).least_position > last_seen_by_any;
  }
  // The last block that is not entirely ahead of the tile, or the first one if all are; -1 if there
  // is no block.
  std::int64_t last_block_behind(const AttentionTile& tile) const {
    if (tile.keys.count == 0) return -1;
    std::int64_t b = block_count(tile.keys) - 1;
    if (tile.keys.positions == nullptr && greatest_query / keys_per_block < b)
      b = greatest_query < 0 ? 0 : greatest_query / keys_per_block;
    while (b > 0 && block_of(tile.keys, b).least_position > greatest_query) --b;
    return b;
  }
  // The number of keys to read of the block that begins at `begin`: the keys after the last visible
  // one are left out.
  int keys_to_read(const AttentionTile& tile, std::int64_t begin) const {
    int count = keys_in_block(tile.keys, begin / keys_per_block);
    const int shown = shown_by_words(tile, begin / keys_per_block);
    if (shown < count) count = shown > 0 ? shown : 1;
    if (tile.keys.positions_rise)
      while (count > 1 && position_of(tile.keys, begin + count - 1) > last_seen_by_any) --count;
    return count;
  }
  // Keys of block b that all queries see.
  KeyRange seen_by_all(const AttentionTile& tile, std::int64_t b) const {
    const KeyBlock block = block_of(tile.keys, b);
    KeyRange range{0, keys_in_block(tile.keys, b)};
    if (block.least_position >= first_seen_by_all && block.greatest_position <= last_seen_by_all)
      return range;
    if (!tile.keys.positions_rise) return {0, 0};
    const auto position = [&](int c) { return position_of(tile.keys, b * keys_per_block + c); };
    while (range.end > 0 && position(range.end - 1) > last_seen_by_all) --range.end;
    while (range.begin < range.end && position(range.begin) < first_seen_by_all) ++range.begin;
    return range;
  }
};

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

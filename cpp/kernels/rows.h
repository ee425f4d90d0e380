// Rows of queries, keys, values and results, and their way between memory and lanes.
#pragma once

#include "kernels/elements.h"
#include "kernels/key_list.h"
#include "kernels/scratch.h"
#include "kernels/transpose.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

using Rows = const char* [keys_per_block];

// packed[d][r] = word d of rows[r], times the scale if Words wants scaled queries.
template <class Words>
void pack_rows(const char* const* rows, int words, float scale, float* packed) {
  const auto scaled = [&](f32v v) { return Words::queries_have_scale ? v * scale : v; };
  for (int r = 0; r < queries_per_tile; r += lanes) {
    int d = 0;
    for (; d + lanes <= words; d += lanes) {
      f32v square[lanes];
      for (int i = 0; i < lanes; ++i) square[i] = load<f32v>(rows[r + i] + sizeof(float) * d);
      transpose(square);
      for (int i = 0; i < lanes; ++i) store(lane_row(packed, d + i) + r, scaled(square[i]));
    }
    for (; d < words; ++d) {
      f32v column;
      for (int i = 0; i < lanes; ++i)
        std::memcpy(reinterpret_cast<char*>(&column) + sizeof(float) * i,
                    rows[r + i] + sizeof(float) * d, sizeof(float));
      store(lane_row(packed, d) + r, scaled(column));
    }
  }
}

// The destination of a tile's rows.
struct RowsOut {
  void* data;
  std::int64_t stride;
  DType dtype;
};

// out[r][d] = packed[d][r] times factors[r]. `rows` is memory for `lanes` rows of head_dim floats.
inline void write_lanes(const float* packed, const float* factors, const AttentionTile& tile,
                        float* rows, const RowsOut& out) {
  const std::int64_t head_dim = tile.head_dim;
  for (int r = 0; r < queries_per_tile; r += lanes) {
    const f32v factor = load<f32v>(factors + r);
    int d = 0;
    for (; d + lanes <= head_dim; d += lanes) {
      f32v square[lanes];
      for (int i = 0; i < lanes; ++i)
        square[i] = load<f32v>(packed + (d + i) * tile_row() + r) * factor;
      transpose(square);
      for (int i = 0; i < lanes; ++i) store(rows + i * head_dim + d, square[i]);
    }
    for (; d < head_dim; ++d)
      for (int i = 0; i < lanes; ++i)
        rows[i * head_dim + d] = packed[d * tile_row() + r + i] * factor[i];
    for (int i = 0; i < lanes && r + i < tile.query_count; ++i)
      write_row(rows + i * head_dim, tile.head_dim, out.dtype,
                static_cast<char*>(out.data) + row_bytes(out.stride, r + i, out.dtype));
  }
}

// pairs[d] = (even[d], odd[d]); a missing odd row counts as 0.
inline void pair_rows(const char* even, const char* odd, int head_dim, float* pairs) {
  int d = 0;
  for (; d + lanes <= head_dim; d += lanes) {
    u32v both = widen(load<u16v>(even + 2 * d));
    if (odd != nullptr) both |= widen(load<u16v>(odd + 2 * d)) << 16;
    store(pairs + d, both);
  }
  for (; d < head_dim; ++d) {
    std::uint16_t pair[2] = {0, 0};
    std::memcpy(pair, even + 2 * d, sizeof pair[0]);
    if (odd != nullptr) std::memcpy(pair + 1, odd + 2 * d, sizeof pair[1]);
    std::memcpy(pairs + d, pair, sizeof pair);
  }
}

// Finds the rows of a block of keys or values as words, in place or converted. It remembers the
// last block, since all tiles of a group ask for the same one.
template <class Words>
class BlockRows {
 public:
  BlockRows(const AttentionTile& tile, const RowScratch& memory) : tile_(tile), memory_(memory) {}

  const Rows& queries(const AttentionTile& tile, Rows& rows) const {
    for (int r = 0; r < queries_per_tile; ++r) {
      // Lanes without a query repeat the last query; write_lanes does not write them.
      const int i = r < tile.query_count ? r : tile.query_count - 1;
      rows[r] = words({tile.query, tile.query_stride, tile.dtype, nullptr}, i,
                      memory_.keys + static_cast<std::int64_t>(r) * tile.head_dim);
    }
    return rows;
  }

  // The last rows of a block that is not full repeat the last key.
  const Rows& keys(std::int64_t b) {
    if (b == keys_block_) return keys_;
    keys_block_ = b;
    find(tile_.key, b, memory_.keys, keys_);
    return keys_;
  }

  // If keys_per_weight is 2, row p holds the keys 2 p and 2 p + 1.
  const Rows& values(std::int64_t b) {
    if (b == values_block_) return values_;
    values_block_ = b;
    finite_is_known_ = false;
    if (Words::keys_per_weight == 1) {
      find(tile_.value, b, memory_.values, values_);
      return values_;
    }
    const int count = keys_in_block(tile_.keys, b);
    for (int c = 0; c < count; c += 2) {
      float* pairs = memory_.values + static_cast<std::int64_t>(c / 2) * tile_.head_dim;
      pair_rows(value_row(b, c), c + 1 < count ? value_row(b, c + 1) : nullptr, tile_.head_dim,
                pairs);
      values_[c / 2] = reinterpret_cast<const char*>(pairs);
    }
    return values_;
  }

  // Finds values as float32. This overwrites the memory of the keys.
  void find_float_values(std::int64_t b, Rows& rows) {
    keys_block_ = -1;
    for (int c = 0; c < keys_in_block(tile_.keys, b); ++c)
      rows[c] = reinterpret_cast<const char*>(
          as_float32(tile_.value, index(b, c), tile_.head_dim,
                     memory_.keys + static_cast<std::int64_t>(c) * tile_.head_dim));
  }

  bool values_are_finite(std::int64_t b) {
    if (b == values_block_ && finite_is_known_) return finite_;
    finite_ = rows_are_finite(tile_.value, b);
    finite_is_known_ = b == values_block_;
    return finite_;
  }
  bool keys_are_finite(std::int64_t b) const { return rows_are_finite(tile_.key, b); }

 private:
  bool rows_are_finite(const HeadRows& from, std::int64_t b) const {
    for (int c = 0; c < keys_in_block(tile_.keys, b); ++c)
      if (!all_finite(from, index(b, c), tile_.head_dim)) return false;
    return true;
  }

  std::int64_t index(std::int64_t b, int c) const {
    return index_of(tile_.keys, b * keys_per_block + c);
  }

  const char* value_row(std::int64_t b, int c) const { return row_at(tile_.value, index(b, c)); }

  const char* words(const HeadRows& from, std::int64_t row, float* converted) const {
    if (Words::in_place(from.dtype)) return row_at(from, row);
    return reinterpret_cast<const char*>(as_float32(from, row, tile_.head_dim, converted));
  }

  void find(const HeadRows& from, std::int64_t b, float* converted, Rows& rows) {
    const int count = keys_in_block(tile_.keys, b);
    for (int c = 0; c < count; ++c)
      rows[c] = words(from, index(b, c), converted + static_cast<std::int64_t>(c) * tile_.head_dim);
    for (int c = count; c < keys_per_block; ++c) rows[c] = rows[count - 1];
  }

  const AttentionTile& tile_;
  const RowScratch memory_;
  Rows keys_, values_;
  std::int64_t keys_block_ = -1, values_block_ = -1;
  bool finite_is_known_ = false, finite_ = false;
};

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

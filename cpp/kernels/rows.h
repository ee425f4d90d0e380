// Rows of queries, keys, values and results, and their way between memory and lanes.
#pragma once

#include "kernels/elements.h"
#include "kernels/key_list.h"
#include "kernels/scratch.h"
#include "kernels/transpose.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

using Rows = const char* [keys_per_block];

// Asks for rows that will be read, or written, soon. Rows that follow a pattern which the hardware
// does not see would each cost a wait for the memory.
template <int Write>
void prefetch_rows(const void* rows, std::int64_t stride, int count, int head_dim, DType dtype) {
  constexpr std::int64_t line = 64;
  const std::int64_t bytes = row_bytes(1, head_dim, dtype);
  for (int r = 0; r < count; ++r)
    for (std::int64_t at = 0; at < bytes; at += line)
      __builtin_prefetch(row_at(rows, stride, r, dtype) + at, Write);
}

// packed[d][r] = word d of rows[r] for `queries` rows, times scales[r] if Words wants scaled
// queries.
template <class Words>
void pack_rows(const char* const* rows, int words, const float* scales, float* packed,
               int queries = queries_per_tile) {
  for (int r = 0; r < queries; r += lanes) {
    const f32v scale = load<f32v>(scales + r);
    const auto scaled = [&](f32v v) { return Words::queries_have_scale ? v * scale : v; };
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

// out[r][d] = packed[d][r] times factors[r].
inline void write_lanes(const float* packed, const float* factors, const AttentionTile& tile,
                        const RowsOut& out) {
  const int head_dim = tile.head_dim;
  const auto row = [&](int r) {
    return static_cast<char*>(out.data) + row_bytes(out.stride, r, out.dtype);
  };
  for (int r = 0; r < tile.query_count; r += lanes) {
    const int count = tile.query_count - r < lanes ? tile.query_count - r : lanes;
    const f32v factor = load<f32v>(factors + r);
    int d = 0;
    for (; d + lanes <= head_dim; d += lanes) {
      f32v square[lanes];
      for (int i = 0; i < lanes; ++i)
        square[i] = load<f32v>(packed + (d + i) * tile_row() + r) * factor;
      transpose(square);
      for (int i = 0; i < count; ++i) store_rounded(square[i], out.dtype, row(r + i), d);
    }
    for (int i = 0; i < count && d < head_dim; ++i) {
      float rest[lanes];
      for (int c = d; c < head_dim; ++c) rest[c - d] = packed[c * tile_row() + r + i] * factor[i];
      write_row(rest, head_dim - d, out.dtype, row(r + i) + row_bytes(1, d, out.dtype));
    }
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

// Rows that are equally far apart, in bytes.
struct EvenRows {
  const char* data;
  std::int64_t stride;
};

// to[d][c] = channel d of row_of(c), of 16 bits, for the keys c of a block; 0 for a row of null.
template <class RowOf>
void transpose_pairs(const RowOf& row_of, int head_dim, std::uint16_t* to) {
  for (int c = 0; c < keys_per_block; c += 2 * lanes)
    for (int d = 0; d < head_dim; d += 2 * lanes) {
      f32v even[lanes], odd[lanes];  // rows of pairs of channels, which transposing makes columns
      for (int i = 0; i < lanes; ++i) {
        const char* const rows[] = {row_of(c + 2 * i), row_of(c + 2 * i + 1)};
        even[i] = rows[0] == nullptr ? f32v{} : load<f32v>(rows[0] + 2 * d);
        odd[i] = rows[1] == nullptr ? f32v{} : load<f32v>(rows[1] + 2 * d);
      }
      transpose(even);
      transpose(odd);
      for (int i = 0; i < lanes; ++i) {
        const u32v a = bits_of(even[i]), b = bits_of(odd[i]);
        std::uint16_t* const channel = to + (d + 2 * i) * keys_per_block + c;
        store(channel, (a & 0xffffu) | b << 16);
        store(channel + keys_per_block, a >> 16 | (b & 0xffff0000u));
      }
    }
}

// Finds the rows of a block of keys or values as words: in place, or stored. Stored rows are
// converted, or copied from rows that lie apart, which fall into few sets of the caches. All tiles
// of a group ask for the same block.
template <class Words>
class BlockRows {
 public:
  BlockRows(const AttentionTile& tile, const RowScratch& memory) : tile_(tile), memory_(memory) {
    StoredBlocks& stored = *memory.stored;
    if (stored.key == tile.key.data && stored.value == tile.value.data &&
        stored.key_scales == tile.key.scales && stored.value_scales == tile.value.scales &&
        stored.indices == tile.keys.indices && stored.count == tile.keys.count)
      return;
    stored.key = tile.key.data;
    stored.value = tile.value.data;
    stored.key_scales = tile.key.scales;
    stored.value_scales = tile.value.scales;
    stored.indices = tile.keys.indices;
    stored.count = tile.keys.count;
    for (int slot = 0; slot < memory.slots; ++slot)
      stored.key_blocks[slot] = stored.value_blocks[slot] = stored.transposed_key_blocks[slot] = 0;
  }

  const Rows& queries(const AttentionTile& tile, Rows& rows, int count = queries_per_tile) const {
    for (int r = 0; r < count; ++r) {
      // Lanes without a query repeat the last query; write_lanes does not write them.
      const int i = r < tile.query_count ? r : tile.query_count - 1;
      rows[r] = words({tile.query, tile.query_stride, tile.dtype, nullptr}, i, memory_.floats, r);
    }
    return rows;
  }

  // The last rows of a block that is not full repeat the last key.
  const Rows& keys(std::int64_t b) {
    if (b == keys_block_) return keys_;
    keys_block_ = b;
    find(tile_.key, b, memory_.keys, memory_.stored->key_blocks, keys_);
    return keys_;
  }

  // If keys_per_weight is 2, row p holds the keys 2 p and 2 p + 1.
  const Rows& values(std::int64_t b) {
    if (b == values_block_) return values_;
    values_block_ = b;
    if (Words::keys_per_weight == 1)
      find(tile_.value, b, memory_.values, memory_.stored->value_blocks, values_);
    else
      find_pairs(b);
    return values_;
  }

  // All keys_per_block rows of keys or values, in place or stored. The rows behind the last key
  // repeat it.
  EvenRows even_keys(std::int64_t b) const {
    return even_rows(tile_.key, b, memory_.keys, memory_.stored->key_blocks);
  }
  EvenRows even_values(std::int64_t b) const {
    return even_rows(tile_.value, b, memory_.values, memory_.stored->value_blocks);
  }

  // Values or keys of 16 bits, transposed: [head_dim][keys_per_block], 0 behind the last key.
  const char* transposed_values(std::int64_t b) const {
    return transposed(tile_.value, b, memory_.values, memory_.stored->value_blocks);
  }
  // They are in the half of a block's memory that even_keys leaves.
  const char* transposed_keys(std::int64_t b) const {
    return transposed(tile_.key, b, memory_.keys + keys_per_block / 2 * tile_.head_dim,
                      memory_.stored->transposed_key_blocks);
  }

  // Finds values or keys as float32, for a moment.
  void find_float_values(std::int64_t b, Rows& rows) const { find_floats(tile_.value, b, rows); }
  void find_float_keys(std::int64_t b, Rows& rows) const { find_floats(tile_.key, b, rows); }

  bool values_are_finite(std::int64_t b) {
    if (b != finite_block_) finite_ = are_finite(tile_.value, b);
    finite_block_ = b;
    return finite_;
  }
  bool keys_are_finite(std::int64_t b) const { return are_finite(tile_.key, b); }

 private:
  std::int64_t index(std::int64_t b, int c) const {
    return index_of(tile_.keys, b * keys_per_block + c);
  }
  const char* row(const HeadRows& from, std::int64_t b, int c) const {
    return row_at(from, index(b, c));
  }

  bool are_finite(const HeadRows& from, std::int64_t b) const {
    f32v zeros = {};
    for (int c = 0; c < keys_in_block(tile_.keys, b); ++c)
      zeros += sum_of_zeros(from, index(b, c), tile_.head_dim);
    return is_finite(zeros);
  }

  // A row as words, in place or as row c of `converted`.
  const char* words(const HeadRows& from, std::int64_t row, float* converted, int c) const {
    if (Words::in_place(from.dtype)) return row_at(from, row);
    return reinterpret_cast<const char*>(as_float32(
        from, row, tile_.head_dim, converted + static_cast<std::int64_t>(c) * tile_.head_dim));
  }

  // The memory of block b, which `fill` fills unless it is there from an earlier tile.
  template <class Fill>
  float* stored(std::int64_t b, float* blocks, std::int32_t* slot_blocks, const Fill& fill) const {
    const int slot = static_cast<int>(b % memory_.slots);
    float* block = blocks + static_cast<std::int64_t>(slot) * keys_per_block * tile_.head_dim;
    if (slot_blocks[slot] != b + 1) fill(block);
    slot_blocks[slot] = static_cast<std::int32_t>(b + 1);
    return block;
  }

  EvenRows even_rows(const HeadRows& from, std::int64_t b, float* blocks,
                     std::int32_t* slot_blocks) const {
    const int count = keys_in_block(tile_.keys, b);
    const bool in_place = (from.stride == tile_.head_dim || memory_.slots == 1) &&
                          count == keys_per_block &&
                          index(b, keys_per_block - 1) - index(b, 0) == keys_per_block - 1;
    if (in_place) return {row(from, b, 0), row_bytes(from.stride, 1, from.dtype)};
    const std::int64_t bytes = row_bytes(1, tile_.head_dim, from.dtype);
    const float* block = stored(b, blocks, slot_blocks, [&](float* to) {
      for (int c = 0; c < keys_per_block; ++c)
        __builtin_memcpy(reinterpret_cast<char*>(to) + c * bytes,
                         row(from, b, c < count ? c : count - 1), bytes);
    });
    return {reinterpret_cast<const char*>(block), bytes};
  }

  const char* transposed(const HeadRows& from, std::int64_t b, float* blocks,
                         std::int32_t* slot_blocks) const {
    const int count = keys_in_block(tile_.keys, b);
    const float* block = stored(b, blocks, slot_blocks, [&](float* to) {
      transpose_pairs([&](int c) { return c < count ? row(from, b, c) : nullptr; }, tile_.head_dim,
                      reinterpret_cast<std::uint16_t*>(to));
    });
    return reinterpret_cast<const char*>(block);
  }

  void find_floats(const HeadRows& from, std::int64_t b, Rows& rows) const {
    for (int c = 0; c < keys_in_block(tile_.keys, b); ++c)
      rows[c] = reinterpret_cast<const char*>(
          as_float32(from, index(b, c), tile_.head_dim,
                     memory_.floats + static_cast<std::int64_t>(c) * tile_.head_dim));
  }

  void find(const HeadRows& from, std::int64_t b, float* blocks, std::int32_t* slot_blocks,
            Rows& rows) const {
    const int count = keys_in_block(tile_.keys, b);
    const bool in_place =
        Words::in_place(from.dtype) && (from.stride == tile_.head_dim || memory_.slots == 1);
    if (in_place) {
      for (int c = 0; c < count; ++c) rows[c] = row(from, b, c);
    } else {
      const std::int64_t bytes = Words::in_place(from.dtype)
                                     ? row_bytes(1, tile_.head_dim, from.dtype)
                                     : static_cast<std::int64_t>(sizeof(float)) * tile_.head_dim;
      const char* block =
          reinterpret_cast<const char*>(stored(b, blocks, slot_blocks, [&](float* to) {
            if (b > 0) prefetch_block(from, b - 1);
            for (int c = 0; c < count; ++c) {
              if (Words::in_place(from.dtype))
                __builtin_memcpy(reinterpret_cast<char*>(to) + c * bytes, row(from, b, c), bytes);
              else
                words(from, index(b, c), to, c);
            }
          }));
      for (int c = 0; c < count; ++c) rows[c] = block + c * bytes;
    }
    for (int c = count; c < keys_per_block; ++c) rows[c] = rows[count - 1];
  }

  // The walk goes from the last block back. Rows that lie apart are not foreseen by the hardware.
  void prefetch_block(const HeadRows& from, std::int64_t b) const {
    for (int c = 0; c < keys_in_block(tile_.keys, b); ++c)
      prefetch_rows<0>(row(from, b, c), 0, 1, tile_.head_dim, from.dtype);
  }

  void find_pairs(std::int64_t b) {
    const HeadRows& from = tile_.value;
    const int count = keys_in_block(tile_.keys, b);
    const float* block = stored(b, memory_.values, memory_.stored->value_blocks, [&](float* to) {
      for (int c = 0; c < count; c += 2)
        pair_rows(row(from, b, c), c + 1 < count ? row(from, b, c + 1) : nullptr, tile_.head_dim,
                  to + static_cast<std::int64_t>(c / 2) * tile_.head_dim);
    });
    for (int c = 0; c < count; c += 2)
      values_[c / 2] =
          reinterpret_cast<const char*>(block + static_cast<std::int64_t>(c / 2) * tile_.head_dim);
  }

  const AttentionTile& tile_;
  const RowScratch memory_;
  Rows keys_, values_;
  std::int64_t keys_block_ = -1, values_block_ = -1, finite_block_ = -1;
  bool finite_ = false;  // the values of finite_block_ are
};

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

// The two products of attention on a tile, lanes = queries: scores from keys, outputs from values.
// Rows of keys and values are read in words of 32 bits, in place where their dtype allows it, and
// broadcast.
#pragma once

#include "kernels/attention_scratch.h"
#include "kernels/elements.h"
#include "kernels/key_list.h"
#include "kernels/transpose.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

#define NTK_ALIBI_INLINE inline __attribute__((always_inline))

// For loops over arrays of vectors that are to stay in registers.
#if defined(__clang__)
#define NTK_ALIBI_UNROLL _Pragma("unroll")
#else
#define NTK_ALIBI_UNROLL _Pragma("GCC unroll 16")
#endif

// With registers to spare, other work is mixed into the multiply-adds, which leave the other
// execution units idle; else it goes before them.
constexpr bool mixes_work = vectors_per_tile * rows_per_step > 12;

using Rows = const char* [keys_per_block];

NTK_ALIBI_INLINE f32v broadcast_word(const char* row, int word) {
  float bits;
  std::memcpy(&bits, row + sizeof bits * word, sizeof bits);
#if defined(__AVX512F__)
  return (f32v)_mm512_set1_ps(bits);  // bits that are no float stay as they are
#else
  return broadcast(bits);
#endif
}

// Multiply-adds of float32; 16-bit rows are converted.
struct Float32Words {
  static constexpr int channels_per_word = 1;
  static constexpr int keys_per_weight = 1;
  static constexpr bool queries_have_scale = true;

  static bool in_place(DType dtype) { return dtype == DType::float32; }
  static NTK_ALIBI_INLINE f32v multiply_add(f32v sum, f32v word, f32v packed) {
    return sum + word * packed;
  }
  static NTK_ALIBI_INLINE void store_weights(float* weights, int c, int v,
                                             const f32v (&weight)[keys_per_weight]) {
    store_vector(weights, c, v, weight[0]);
  }
};

#if defined(__AVX512BF16__)

// Dot products of bfloat16 pairs, summed in float32: of neighbouring channels for the scores, of
// neighbouring keys for the output. For an even head_dim.
struct Bfloat16Pairs {
  static constexpr int channels_per_word = 2;
  static constexpr int keys_per_weight = 2;
  static constexpr bool queries_have_scale = false;  // they would have to be rounded again

  static bool in_place(DType) { return true; }
  static NTK_ALIBI_INLINE f32v multiply_add(f32v sum, f32v word, f32v packed) {
    return (f32v)_mm512_dpbf16_ps((__m512)sum, (__m512bh)word, (__m512bh)packed);
  }
  // Two rows of weights become one of pairs.
  static NTK_ALIBI_INLINE void store_weights(float* weights, int c, int v,
                                             const f32v (&weight)[keys_per_weight]) {
    alignas(64) static constexpr std::uint16_t alternate[32] = {
        0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)weight[1], (__m512)weight[0]);
    const __m512i pairs = _mm512_permutexvar_epi16(_mm512_load_si512(alternate), halves);
    store_vector(weights, c / 2, v, (f32v)pairs);
  }
};

#endif

// --- rows
// -------------------------------------------------------------------------------------------

// packed[d][r] = word d of rows[r], times the scale if queries are to have it.
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

// Where rows of a tile go.
struct RowsOut {
  void* data;
  std::int64_t stride;
  DType dtype;
};

// out[r][d] = packed[d][r] times factors[r]; rows: room for as many rows as a vector has lanes.
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

// pairs[d] = (even[d], odd[d]); without an odd row, its half is 0.
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

// Where the rows of a block of keys, and of values, are as words: in place, or converted. Blocks
// are remembered, for a group of tiles asks for the same ones.
template <class Words>
class BlockRows {
 public:
  BlockRows(const AttentionTile& tile, const RowScratch& memory) : tile_(tile), memory_(memory) {}

  const Rows& queries(const AttentionTile& tile, Rows& rows) const {
    for (int r = 0; r < queries_per_tile; ++r) {
      // Lanes without a query repeat the last one and are not written back.
      const int i = r < tile.query_count ? r : tile.query_count - 1;
      rows[r] = words(row_at(tile.query, tile.query_stride, i, tile.dtype),
                      memory_.keys + static_cast<std::int64_t>(r) * tile.head_dim);
    }
    return rows;
  }

  // The last rows of a block that is not full repeat the last key.
  const Rows& keys(std::int64_t b) {
    if (b == keys_block_) return keys_;
    keys_block_ = b;
    find(tile_.key, tile_.key_stride, b, memory_.keys, keys_);
    return keys_;
  }

  // With keys_per_weight 2 row p holds keys 2 p and 2 p + 1.
  const Rows& values(std::int64_t b) {
    if (b == values_block_) return values_;
    values_block_ = b;
    finite_is_known_ = false;
    if (Words::keys_per_weight == 1) {
      find(tile_.value, tile_.value_stride, b, memory_.values, values_);
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

  // Values as float32, for which the keys' memory is used.
  void find_float_values(std::int64_t b, Rows& rows) {
    keys_block_ = -1;
    for (int c = 0; c < keys_in_block(tile_.keys, b); ++c)
      rows[c] = reinterpret_cast<const char*>(
          as_float32(value_row(b, c), tile_.head_dim, tile_.dtype,
                     memory_.keys + static_cast<std::int64_t>(c) * tile_.head_dim));
  }

  bool values_are_finite(std::int64_t b) {
    if (b == values_block_ && finite_is_known_) return finite_;
    finite_ = rows_are_finite(tile_.value, tile_.value_stride, b);
    finite_is_known_ = b == values_block_;
    return finite_;
  }
  bool keys_are_finite(std::int64_t b) const {
    return rows_are_finite(tile_.key, tile_.key_stride, b);
  }

 private:
  bool rows_are_finite(const void* from, std::int64_t stride, std::int64_t b) const {
    for (int c = 0; c < keys_in_block(tile_.keys, b); ++c)
      if (!all_finite(
              row_at(from, stride, index_of(tile_.keys, b * keys_per_block + c), tile_.dtype),
              tile_.head_dim, tile_.dtype))
        return false;
    return true;
  }

  const char* value_row(std::int64_t b, int c) const {
    return row_at(tile_.value, tile_.value_stride, index_of(tile_.keys, b * keys_per_block + c),
                  tile_.dtype);
  }

  const char* words(const char* row, float* converted) const {
    if (Words::in_place(tile_.dtype)) return row;
    return reinterpret_cast<const char*>(as_float32(row, tile_.head_dim, tile_.dtype, converted));
  }

  void find(const void* from, std::int64_t stride, std::int64_t b, float* converted, Rows& rows) {
    const int count = keys_in_block(tile_.keys, b);
    for (int c = 0; c < count; ++c)
      rows[c] =
          words(row_at(from, stride, index_of(tile_.keys, b * keys_per_block + c), tile_.dtype),
                converted + static_cast<std::int64_t>(c) * tile_.head_dim);
    for (int c = count; c < keys_per_block; ++c) rows[c] = rows[count - 1];
  }

  const AttentionTile& tile_;
  const RowScratch memory_;
  Rows keys_, values_;
  std::int64_t keys_block_ = -1, values_block_ = -1;
  bool finite_is_known_ = false, finite_ = false;
};

// --- products
// ----------------------------------------------------------------------------------------

// dot[u] = row[u] . query, of packed queries; calls meanwhile(u) for every row on the way.
template <class Words, class Work>
NTK_ALIBI_INLINE void multiply(const float* packed, const char* const* row, int head_dim,
                               f32v (&dot)[rows_per_step][vectors_per_tile],
                               const Work& meanwhile) {
  constexpr int slice = Words::keys_per_weight;
  const int words = head_dim / Words::channels_per_word;
  int d = 0;
  for (int first = 0; first < rows_per_step; first += slice) {
    meanwhile(first);
    if (!mixes_work && first + slice < rows_per_step) continue;
    const int end = words * (first + slice) / rows_per_step;
    for (; d < end; ++d) {
      f32v query[vectors_per_tile];
      for (int v = 0; v < vectors_per_tile; ++v) query[v] = vector_of(packed, d, v);
      for (int u = 0; u < rows_per_step; ++u) {
        const f32v key = broadcast_word(row[u], d);
        for (int v = 0; v < vectors_per_tile; ++v)
          dot[u][v] = Words::multiply_add(dot[u][v], key, query[v]);
      }
    }
  }
}

// output[d .. d + Channels) = rescaled, plus the sum over rows of weights[c] values[c][d]. A masked
// weight is 0, and with Guarded a 0 takes part in no arithmetic, whatever the value.
template <class Words, int Channels, bool Guarded>
void add_channels(const Scratch& s, const float* weights, const char* const* values, int count,
                  int d) {
  f32v sum[Channels][vectors_per_tile] = {};
  for (int c = 0; c < count; ++c) {
    f32v weight[vectors_per_tile];
    for (int v = 0; v < vectors_per_tile; ++v) weight[v] = vector_of(weights, c, v);
    for (int u = 0; u < Channels; ++u) {
      const f32v value = broadcast_word(values[c], d + u);
      for (int v = 0; v < vectors_per_tile; ++v) {
        const f32v with = Words::multiply_add(sum[u][v], value, weight[v]);
        sum[u][v] = Guarded ? (weight[v] == 0.0f ? sum[u][v] : with) : with;
      }
    }
  }
  // A fresh sum for each block: one chain over all keys would lose half a digit.
  NTK_ALIBI_UNROLL
  for (int u = 0; u < Channels; ++u) NTK_ALIBI_UNROLL
  for (int v = 0; v < vectors_per_tile; ++v)
    store_vector(s.output, d + u, v,
                 vector_of(s.output, d + u, v) * vector_of(s.rescale, 0, v) + sum[u][v]);
}

template <class Words, bool Guarded>
void add_rows(const Scratch& s, const float* weights, const char* const* values, int count,
              int head_dim) {
  int d = 0;
  for (; d + rows_per_step <= head_dim; d += rows_per_step)
    add_channels<Words, rows_per_step, Guarded>(s, weights, values, count, d);
  for (; d < head_dim; ++d) add_channels<Words, 1, Guarded>(s, weights, values, count, d);
}

// A value that is not finite must not meet the weights 0 of queries that do not see it.
template <class Words>
void add_guarded(const Scratch& s, float* weights, BlockRows<Words>& rows, std::int64_t b,
                 int count, int head_dim) {
  Rows values;
  rows.find_float_values(b, values);
  if (Words::keys_per_weight == 2)
    for (int c = (count - 1) / 2 * 2; c >= 0; c -= 2)  // pairs spread out, the last one first
      for (int v = 0; v < vectors_per_tile; ++v) {
        const u32v pair = bits_of(vector_of(weights, c / 2, v));
        if (c + 1 < keys_per_block) store_vector(weights, c + 1, v, float_of(pair & 0xffff0000u));
        store_vector(weights, c, v, float_of(pair << 16));
      }
  add_rows<Float32Words, true>(s, weights, values, count, head_dim);
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

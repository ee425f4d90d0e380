// The rows of queries and of output gradients that gradients of a tile are made of, in the forms
// that the products read.
#pragma once

#include "kernels/dropout.h"
#if defined(NTK_ALIBI_AMX)
#include "kernels/matrix_products.h"
#endif
#include "kernels/tile_scores.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

constexpr int padded(int head_dim) {
  return (head_dim + gradient_padding - 1) / gradient_padding * gradient_padding;
}

struct GradientScratch {
  Scratch tile;  // scores[0]: p of kept weights, scores[1]: ds; log_sum: the logsumexp, log2 domain
  RowScratch rows;
  float* correction;  // [1][queries_per_tile]: do.o - dlse
  // For products of float32: [head_dim][queries_per_tile] and, with queries times their scales, and
  // gradients times the factor of dropout, [queries_per_tile][padded head_dim].
  // For matrix registers: packed pairs of channels, and rows of pairs of queries.
  float* output_gradient;
  float* query_rows;
  float* output_gradient_rows;
  float* key_pairs;  // [keys_per_block / 2][queries_per_tile], for matrix registers: ds
};

inline GradientScratch divide(Pieces& pieces, const AttentionTile& tile) {
  const int head_dim = tile.head_dim;
  GradientScratch s;
  s.rows = pieces.rows(head_dim, slots_for(tile));
  s.tile = pieces.tile(head_dim);
  s.correction = pieces.take(tile_row());
  s.output_gradient = pieces.take(head_dim * tile_row());
  s.query_rows = pieces.take(queries_per_tile * static_cast<std::int64_t>(padded(head_dim)));
  s.output_gradient_rows =
      pieces.take(queries_per_tile * static_cast<std::int64_t>(padded(head_dim)));
  s.key_pairs = pieces.take(keys_per_block / 2 * tile_row());
  return s;
}

// Copies rows as float32, padded with zeros. Lanes without a query repeat the last one.
inline void copy_rows(const AttentionTile& tile, const void* from, std::int64_t stride, float* to) {
  const int width = padded(tile.head_dim);
  for (int r = 0; r < queries_per_tile; ++r) {
    const int i = r < tile.query_count ? r : tile.query_count - 1;
    float* row = to + static_cast<std::int64_t>(r) * width;
    const float* source =
        as_float32(row_at(from, stride, i, tile.dtype), tile.head_dim, tile.dtype, row);
    if (source != row) __builtin_memcpy(row, source, tile.head_dim * sizeof(float));
    for (int d = tile.head_dim; d < width; ++d) row[d] = 0.0f;
  }
}

inline void pack(const AttentionTile& tile, const float* padded_rows, const float* scales,
                 float* packed) {
  const char* rows[queries_per_tile];
  for (int r = 0; r < queries_per_tile; ++r)
    rows[r] = reinterpret_cast<const char*>(padded_rows +
                                            static_cast<std::int64_t>(r) * padded(tile.head_dim));
  pack_rows<Float32Words>(rows, tile.head_dim, scales, packed);
}

inline void scale_row(const AttentionTile& tile, int r, float factor, float* padded_rows) {
  const int width = padded(tile.head_dim);
  for (int d = 0; d < width; ++d) padded_rows[static_cast<std::int64_t>(r) * width + d] *= factor;
}

// A query that sees nothing has no gradients. Its padded row is cleared, since a weight of 0 times
// NaN would be NaN.
inline void clear_row(const AttentionTile& tile, int r, const GradientScratch& s) {
  const int width = padded(tile.head_dim);
  for (int d = 0; d < width; ++d) {
    s.query_rows[static_cast<std::int64_t>(r) * width + d] = 0.0f;
    s.output_gradient_rows[static_cast<std::int64_t>(r) * width + d] = 0.0f;
  }
}

inline void load_rows(const GradientTile& gradient, const GradientScratch& s) {
  const AttentionTile& tile = *gradient.tile;
  copy_rows(tile, tile.query, tile.query_stride, s.query_rows);
  copy_rows(tile, gradient.output_gradient, gradient.output_gradient_stride,
            s.output_gradient_rows);
  for (int r = 0; r < tile.query_count; ++r)
    if (tile.logsumexp[r] == -infinity) clear_row(tile, r, s);
  pack(tile, s.query_rows, s.tile.scales, s.tile.query);
  for (int r = 0; r < tile.query_count; ++r) {
    scale_row(tile, r, tile.scales[r], s.query_rows);
    if (drops(tile)) scale_row(tile, r, tile.dropout.factor, s.output_gradient_rows);
  }
  pack(tile, s.output_gradient_rows, s.tile.rescale, s.output_gradient);
}

#if defined(NTK_ALIBI_AMX)

// Packs the pairs of channels of the tile's rows, and pairs the rows of the queries i and i + 16.
// Lanes without a query or a visible key get zeros, which `floats` has room for.
inline void pack_pairs(const AttentionTile& tile, const void* from, std::int64_t stride,
                       float* floats, float* packed, float* pairs) {
  for (int d = 0; d < tile.head_dim; ++d) floats[d] = 0.0f;
  const char* rows[queries_per_tile];
  for (int r = 0; r < queries_per_tile; ++r)
    rows[r] = r < tile.query_count && tile.logsumexp[r] != -infinity
                  ? row_at(from, stride, r, tile.dtype)
                  : reinterpret_cast<const char*>(floats);
  using Words = Bfloat16Matrices;
  pack_rows<Words>(rows, tile.head_dim / Words::channels_per_word, floats, packed);
  for (int r = 0; r < lanes; ++r)
    pair_rows(rows[r], rows[r + lanes], tile.head_dim,
              pairs + static_cast<std::int64_t>(r) * tile.head_dim);
}

inline void load_pairs(const GradientTile& gradient, const GradientScratch& s) {
  const AttentionTile& tile = *gradient.tile;
  pack_pairs(tile, tile.query, tile.query_stride, s.rows.floats, s.tile.query, s.query_rows);
  pack_pairs(tile, gradient.output_gradient, gradient.output_gradient_stride, s.rows.floats,
             s.output_gradient, s.output_gradient_rows);
}
#endif

template <class Words>
void load_gradient(const GradientTile& gradient, const GradientScratch& s) {
  const AttentionTile& tile = *gradient.tile;
  load_tile_rows(tile, s.tile);
  for (int r = 0; r < queries_per_tile; ++r) s.tile.rescale[r] = 1.0f;
#if defined(NTK_ALIBI_AMX)
  if constexpr (Words::in_matrices)
    load_pairs(gradient, s);
  else
#endif
    load_rows(gradient, s);
  for (int r = 0; r < queries_per_tile; ++r) {
    const bool real = r < tile.query_count && tile.logsumexp[r] != -infinity;
    // With a log sum of infinity, all weights of a lane without a query or a visible key are 0.
    s.tile.log_sum[r] =
        real ? static_cast<float>((tile.logsumexp[r] - tile.bias.shifts[r]) * log2_e_double)
             : infinity;
    s.correction[r] = 0.0f;
    if (!real) continue;
    const char* row =
        row_at(gradient.output_gradient, gradient.output_gradient_stride, r, tile.dtype);
    const char* output = row_at(tile.output, tile.output_stride, r, tile.dtype);
    float* const floats = s.rows.floats;
    double product = dot_in_float64(
        as_float32(row, tile.head_dim, tile.dtype, floats),
        as_float32(output, tile.head_dim, tile.dtype, floats + tile.head_dim), tile.head_dim);
    if (gradient.logsumexp_gradient != nullptr) product -= gradient.logsumexp_gradient[r];
    s.correction[r] = static_cast<float>(product);
  }
  for (std::int64_t i = 0; i < tile.head_dim * tile_row(); ++i) s.tile.output[i] = 0.0f;
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

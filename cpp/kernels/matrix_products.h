// The two products of attention on a tile, by matrix registers: as products.h, for bfloat16 rows of
// a multiple of 32 channels.
#pragma once

#include "kernels/matrix_registers.h"
#include "kernels/rows.h"
#include "kernels/scratch.h"
#include "kernels/words.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

static_assert(lanes == matrix_rows, "a register has a vector of queries in each row");

// What one product sums over: 32 channels, or 32 keys.
constexpr int terms_per_product = 32;

// The bytes from row to row of lanes, such as packed queries.
constexpr std::int64_t lane_row_bytes = sizeof(float) * queries_per_tile;

inline bool suits_matrices(const AttentionTile& tile) {
  return suits_bfloat16(tile, terms_per_product);
}

// Loads 16 rows of both vectors of queries.
template <int First>
NTK_ALIBI_INLINE void load_vectors(const float* rows) {
  MatrixRegisters::load<First>(rows, lane_row_bytes);
  MatrixRegisters::load<First + 1>(rows + lanes, lane_row_bytes);
}

// products[c][query] = key c . query, for the keys up to `count`, rounded up to 16.
inline void multiply_matrices(const float* queries, const EvenRows& keys, int head_dim, int count,
                              float* products) {
  using M = MatrixRegisters;
  // The queries of 64 channels stay in their registers.
  const bool queries_stay = head_dim <= 2 * terms_per_product;
  for (int c = 0; c < count; c += matrix_rows) {
    const char* const rows = keys.data + c * keys.stride;
    const bool load = c == 0 || !queries_stay;
    M::zero<0>();
    M::zero<1>();
    for (int d = 0; d < head_dim; d += 2 * terms_per_product) {
      M::load<2>(rows + 2 * d, keys.stride);
      if (load) load_vectors<4>(lane_row(queries, d / 2));
      M::add_products<0, 2, 4>();
      M::add_products<1, 2, 5>();
      if (d + terms_per_product >= head_dim) break;
      M::load<3>(rows + 2 * (d + terms_per_product), keys.stride);
      if (load) load_vectors<6>(lane_row(queries, d / 2 + matrix_rows));
      M::add_products<0, 3, 6>();
      M::add_products<1, 3, 7>();
    }
    M::store<0>(lane_row(products, c), lane_row_bytes);
    M::store<1>(lane_row(products, c) + lanes, lane_row_bytes);
  }
}

// output[d] += the sum over keys of weights[key] values[d][key]. Weights are rows of pairs, values
// [head_dim][keys_per_block]; up to 32 keys may be all there are.
inline void add_matrices(const float* weights, const char* values, int count, int head_dim,
                         float* output) {
  using M = MatrixRegisters;
  constexpr std::int64_t stride = 2 * keys_per_block;
  const bool both = count > terms_per_product;
  load_vectors<4>(weights);
  if (both) load_vectors<6>(lane_row(weights, terms_per_product / 2));
  for (int d = 0; d < head_dim; d += matrix_rows) {
    float* const rows = lane_row(output, d);
    const char* const channels = values + d * stride;
    M::load<0>(rows, lane_row_bytes);
    M::load<2>(channels, stride);
    M::add_products<0, 2, 4>();
    M::load<1>(rows + lanes, lane_row_bytes);
    M::add_products<1, 2, 5>();
    if (both) M::load<3>(channels + 2 * terms_per_product, stride);
    if (both) M::add_products<0, 3, 6>();
    if (both) M::add_products<1, 3, 7>();
    M::store<0>(rows, lane_row_bytes);
    M::store<1>(rows + lanes, lane_row_bytes);
  }
}

// sums[c] += the sum over queries of weights[c][query] rows[query], for the keys up to `count`,
// rounded up to 16. A row of weights has the pairs (i, i + 16) of queries, as `pairs`
// [16][head_dim] has their rows.
inline void add_over_pairs(const float* weights, const float* pairs, int count, int head_dim,
                           float* sums) {
  using M = MatrixRegisters;
  const std::int64_t row_bytes = static_cast<std::int64_t>(sizeof(float)) * head_dim;
  for (int d = 0; d < head_dim; d += 2 * matrix_rows) {
    M::load<4>(pairs + d, row_bytes);
    M::load<5>(pairs + d + matrix_rows, row_bytes);
    for (int c = 0; c < count; c += matrix_rows) {
      float* const rows = sums + static_cast<std::int64_t>(c) * head_dim + d;
      M::load<2>(lane_row(weights, c), lane_row_bytes);
      M::load<0>(rows, row_bytes);
      M::add_products<0, 2, 4>();
      M::load<1>(rows + matrix_rows, row_bytes);
      M::add_products<1, 2, 5>();
      M::store<0>(rows, row_bytes);
      M::store<1>(rows + matrix_rows, row_bytes);
    }
  }
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

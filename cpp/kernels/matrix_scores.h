// Scores and weights of a block whose products come from matrix registers, through memory. No work
// is mixed into those products, which would gain a tenth at most (benchmarks/results/amx.md).
#pragma once

#include "kernels/matrix_products.h"
#include "kernels/weights.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

// Each key's position relative to the last one of its block, -63 to 0: the nearest key, whose bias
// must be the most exact. A multiply-add reads them from memory for nothing.
struct FromLast {
  constexpr FromLast() : values() {
    for (int c = 0; c < keys_per_block; ++c) values[c] = static_cast<float>(c - keys_per_block + 1);
  }
  float values[keys_per_block];
};
inline constexpr FromLast from_last;

// Turns the products of a full block, of which no key is masked, into weights at once, relative to
// the maximum so far, and sums them. Returns false if a score exceeds that maximum: then the block
// must be scored first. Products stay as they are.
template <class Bias>
bool weigh_products(const AttentionTile& tile, const Scratch& s, const ScoredBlock& block,
                    float* weights, f32v (&sums)[vectors_per_tile]) {
  using Words = Bfloat16Matrices;
  const Bias bias(tile, s);
  const auto first = static_cast<std::int32_t>(block.number * keys_per_block);
  i32v exceeds = {};
  for (int v = 0; v < vectors_per_tile; ++v) {
    const f32v maximum = vector_of(s.maximum, 0, v), scale = vector_of(s.scales, 0, v);
    f32v distance = to_float(load<i32v>(bias_origins(s) + v * lanes) - broadcast(first));
    f32v slope = {}, last_bias = {};  // less the maximum
    if constexpr (Bias::is_proportional) {
      slope = bias.slope(v);
      last_bias = -maximum - slope * (distance + from_last.values[0]);
    }
    f32v sum = {}, greatest = broadcast(-infinity);
    for (int c = 0; c < keys_per_block; c += Words::keys_per_weight) {
      f32v weight[Words::keys_per_weight];
      NTK_ALIBI_UNROLL
      for (int u = 0; u < Words::keys_per_weight; ++u) {
        const f32v product = vector_of(block.scores, c + u, v);
        f32v above;
        if constexpr (Bias::is_proportional) {
          above = product * scale + (last_bias + slope * broadcast(from_last.values[c + u]));
        } else {
          above = bias.at(product * scale - maximum, v, distance);
          distance -= 1.0f;
        }
        greatest = max(greatest, above);
        weight[u] = exp2(above);
      }
      sum += weight[0] + weight[1];
      Words::store_weights(weights, c, v, weight);
    }
    sums[v] = sum;
    exceeds |= ~(greatest <= 0.0f);  // or NaN
    store_vector(s.block_maximum, 0, v, maximum + greatest);
  }
  return !any(exceeds);
}

// Multiplies the output by the factors of earlier sums.
inline void rescale_output(const Scratch& s, int head_dim) {
  f32v factor[vectors_per_tile];
  i32v changes = {};
  for (int v = 0; v < vectors_per_tile; ++v) {
    factor[v] = vector_of(s.rescale, 0, v);
    changes |= factor[v] != 1.0f;
  }
  if (!any(changes)) return;
  for (int d = 0; d < head_dim; ++d)
    for (int v = 0; v < vectors_per_tile; ++v)
      store_vector(s.output, d, v, vector_of(s.output, d, v) * factor[v]);
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

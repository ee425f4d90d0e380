// From scores to weights: exponentials relative to each query's greatest score so far, their sum,
// and what changes when that score rises.
#pragma once

#include "kernels/exp2.h"
#include "kernels/softmax.h"
#include "kernels/tile_scores.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

// Adds the sum of a block's weights, and notes a lower bound of the whole.
inline void add_to_sum(const Scratch& s, int v, f32v block_sum) {
  const f32v sum = vector_of(s.sum, 0, v) * vector_of(s.rescale, 0, v) + block_sum;
  store_vector(s.sum, 0, v, sum);
  // The exponent of a float is a lower bound of its logarithm.
  const i32v exponent = (i32v)(bits_of(sum) >> 23) - 127;
  store_vector(s.log_sum, 0, v,
               max(vector_of(s.log_sum, 0, v), vector_of(s.maximum, 0, v) + to_float(exponent)));
}

// Turns the scores of a block into weights, a few keys at a time, and sums the weights.
template <class Words>
class Weighing {
 public:
  NTK_ALIBI_INLINE Weighing(const Scratch& s, const ScoredBlock& block)
      : scores_(block.scores), count_(keys_to_weigh<Words>(block.count)) {
    for (int v = 0; v < vectors_per_tile; ++v) {
      origin_[v] = origin_of_scores(vector_of(s.maximum, 0, v));
      sum_[v] = f32v{};
    }
  }

  NTK_ALIBI_INLINE void weigh(int c) {
    for (int v = 0; v < vectors_per_tile; ++v) sum_[v] += weigh(c, v);
  }

  // Weighs the remaining keys, from key c on, and updates the running sum.
  NTK_ALIBI_INLINE void finish(const Scratch& s, int c) {
    if (count_ == 0) return;
    for (int v = 0; v < vectors_per_tile; ++v) {
      f32v block_sum = sum_[v];
      for (int k = c; k < count_; k += Words::keys_per_weight) block_sum += weigh(k, v);
      add_to_sum(s, v, block_sum);
    }
  }

 private:
  // Weighs keys_per_weight keys for one vector of queries, and returns their sum.
  NTK_ALIBI_INLINE f32v weigh(int c, int v) const {
    f32v weight[Words::keys_per_weight];
    for (int u = 0; u < Words::keys_per_weight; ++u)
      weight[u] = exp2(vector_of(scores_, c + u, v) - origin_[v]);
    f32v sum = weight[0];
    for (int u = 1; u < Words::keys_per_weight; ++u) sum += weight[u];
    Words::store_weights(scores_, c, v, weight);
    return sum;
  }

  float* const scores_;
  const int count_;
  f32v origin_[vectors_per_tile];
  f32v sum_[vectors_per_tile];
};

// Raises the running maximum to the current block's, and returns whether it rises for a
// query.
inline bool raise_maximum(const Scratch& s) {
  i32v rises = {};
  for (int v = 0; v < vectors_per_tile; ++v)
    rises |= ~(vector_of(s.block_maximum, 0, v) <= vector_of(s.maximum, 0, v));  // or NaN
  const bool any_rises = any(rises);
  for (int v = 0; v < vectors_per_tile; ++v) {
    const f32v before = vector_of(s.maximum, 0, v);
    if (!any_rises) {
      store_vector(s.rescale, 0, v, broadcast(1.0f));
      continue;
    }
    const f32v maximum = max(before, vector_of(s.block_maximum, 0, v));
    store_vector(s.maximum, 0, v, maximum);
    store_vector(s.rescale, 0, v, exp2(before - origin_of_scores(maximum)));
    store_vector(s.log_sum, 0, v, max(maximum, vector_of(s.log_sum, 0, v)));
  }
  return any_rises;
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

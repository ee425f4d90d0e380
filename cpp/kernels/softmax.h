// What the kernels know of a query's softmax: its greatest score, log2 domain, and the sum of its
// weights relative to that.
#pragma once

#include "kernels/constants.h"
#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

// Weights are 2^(score - this), for a number or a vector. Before the first visible key both score
// and maximum are -infinity: their difference is NaN.
inline float origin_of_scores(float maximum) { return maximum == -infinity ? 0.0f : maximum; }
inline f32v origin_of_scores(f32v maximum) { return maximum == -infinity ? f32v{} : maximum; }

// 0 for an empty sum.
inline float inverse_of_sum(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }
inline f32v inverse_of_sum(f32v sum) { return sum == 0.0f ? f32v{} : 1.0f / sum; }

// Writes the natural logsumexp of a query, -infinity for an empty sum, and whether it is empty.
inline void write_sum(const AttentionTile& tile, int query, float maximum, float sum) {
  constexpr double ln_2 = 0.69314718055994530942;
  tile.weightless[query] = sum == 0.0f;
  if (tile.logsumexp == nullptr) return;
  tile.logsumexp[query] = sum == 0.0f ? -infinity
                                      : tile.bias.shifts[query] + ln_2 * maximum +
                                            __builtin_log(static_cast<double>(sum));
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

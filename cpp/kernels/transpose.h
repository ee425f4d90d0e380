// Transposition of a square of lanes x lanes floats, and sums and maxima over lanes.
#pragma once

#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

template <int... I>
struct Indices {};
template <int N, int... I>
struct IndicesUpTo : IndicesUpTo<N - 1, N - 1, I...> {};
template <int... I>
struct IndicesUpTo<0, I...> {
  using type = Indices<I...>;
};

// Lanes First, First + 1, ... of a and b, alternating.
template <int First, int... I>
inline f32v interleave(f32v a, f32v b, Indices<I...>) {
#if defined(__clang__) || __GNUC__ >= 12
  return __builtin_shufflevector(a, b, (First + I / 2 + (I % 2) * lanes)...);
#else
  return __builtin_shuffle(a, b, i32v{(First + I / 2 + (I % 2) * lanes)...});
#endif
}

// Swaps rows[i][j] and rows[j][i].
inline void transpose(f32v (&rows)[lanes]) {
  using All = IndicesUpTo<lanes>::type;
  // Each stage rotates the 2 log2(lanes) bits of (row, lane) by one place, so that log2(lanes)
  // stages swap row and lane.
  for (int stage = 1; stage < lanes; stage *= 2) {
    f32v mixed[lanes];
    for (int i = 0; i < lanes / 2; ++i) {
      mixed[2 * i] = interleave<0>(rows[i], rows[i + lanes / 2], All());
      mixed[2 * i + 1] = interleave<lanes / 2>(rows[i], rows[i + lanes / 2], All());
    }
    for (int i = 0; i < lanes; ++i) rows[i] = mixed[i];
  }
}

// Returns in lane i the sum of the lanes of rows[i], and overwrites rows.
inline f32v sums_of_lanes(f32v (&rows)[lanes]) {
  using All = IndicesUpTo<lanes>::type;
  // Each stage adds the upper halves to the lower ones and puts two rows into one.
  for (int count = lanes / 2; count > 0; count /= 2)
    for (int i = 0; i < count; ++i)
      rows[i] = interleave<0>(rows[i], rows[i + count], All()) +
                interleave<lanes / 2>(rows[i], rows[i + count], All());
  return rows[0];
}

// The greatest lane. NaN may be lost.
inline float greatest_lane(f32v v) {
  using All = IndicesUpTo<lanes>::type;
  for (int count = lanes / 2; count > 0; count /= 2)
    v = max(interleave<0>(v, v, All()), interleave<lanes / 2>(v, v, All()));
  return v[0];
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

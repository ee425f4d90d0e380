// The two products of attention on a tile, lanes = queries: scores from keys, outputs from values.
#pragma once

#include "kernels/rows.h"
#include "kernels/scratch.h"
#include "kernels/words.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

// A step of the products keeps this many sums in registers.
constexpr int sums_per_step = vectors_per_tile * rows_per_step;

// 16 vector registers hold 12 sums, 3 vectors of queries and 1 broadcast word of a key.
constexpr int sums_in_16_registers = 12;

// With more registers, other work is mixed into the multiply-adds, which leave the other execution
// units idle; else the caller does it before.
template <class Words>
constexpr bool mixes_work = sums_per_step > sums_in_16_registers && !Words::in_matrices;

// dot[u] += row[u] . query for packed queries. Where work is mixed, meanwhile(u) is called once for
// every slice of rows, between the multiply-adds.
template <class Words, class Work>
NTK_ALIBI_INLINE void multiply(const float* packed, const char* const* row, int head_dim,
                               f32v (&dot)[rows_per_step][vectors_per_tile],
                               const Work& meanwhile) {
  constexpr int slice = mixes_work<Words> ? Words::keys_per_weight : rows_per_step;
  const int words = head_dim / Words::channels_per_word;
  int d = 0;
  for (int first = 0; first < rows_per_step; first += slice) {
    if (mixes_work<Words>) meanwhile(first);
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

// output[d .. d + Channels) = output times rescale, plus the sum over rows of weights[c]
// values[c][d]. With Guarded a weight of 0, as masked and dropped keys have, contributes 0 even if
// the value is not finite.
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
  // Each block has a sum of its own: a single chain of additions over all keys would lose half a
  // digit.
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

// As add_rows, for values that are not finite: a query that does not see such a value has the
// weight 0 for it, and 0 times infinity is NaN.
template <class Words>
void add_guarded(const Scratch& s, float* weights, BlockRows<Words>& rows, std::int64_t b,
                 int count, int head_dim) {
  Rows values;
  rows.find_float_values(b, values);
  if (Words::keys_per_weight == 2)
    for (int c = (count - 1) / 2 * 2; c >= 0; c -= 2)  // unpack pairs, the last one first
      for (int v = 0; v < vectors_per_tile; ++v) {
        const u32v pair = bits_of(vector_of(weights, c / 2, v));
        if (c + 1 < keys_per_block) store_vector(weights, c + 1, v, float_of(pair & 0xffff0000u));
        store_vector(weights, c, v, float_of(pair << 16));
      }
  add_rows<Float32Words, true>(s, weights, values, count, head_dim);
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

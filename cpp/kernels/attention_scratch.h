// What one thread keeps while it works on a tile of queries.
#pragma once

#include "kernels/attention.h"
#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

constexpr float log2_e = 1.44269504088896340736f;
constexpr float infinity = __builtin_inff();

// The natural logsumexp of a sum relative to a maximum in the log2 domain; -infinity of nothing.
inline float logsumexp(float maximum, float sum) {
  constexpr double ln_2 = 0.69314718055994530942;
  if (sum == 0.0f) return -infinity;
  return static_cast<float>(ln_2 * maximum + __builtin_log(static_cast<double>(sum)));
}

// Memory of one thread; floats [rows][queries_per_tile] but for the converted keys and values.
struct Scratch {
  float* query;        // [head_dim], times scale log2 e
  float* output;       // [head_dim]
  float* weights;      // [keys_per_block]: scores, then their exponentials
  float* maximum;      // [1], log2 domain
  float* sum;          // [1]
  float* rescale;      // [1]: what a raised maximum does to earlier sums
  float* slopes;       // [2]: left, right, times log2 e
  std::int32_t* ints;  // [3]: query positions, least and greatest distances
  float* keys;         // [keys_per_block][head_dim]
  float* values;       // [keys_per_block][head_dim]
};

constexpr std::int64_t fixed_rows = keys_per_block + 1 + 1 + 1 + 2 + 3;

inline std::int64_t tile_row() { return queries_per_tile; }

inline Scratch divide(void* memory, int head_dim) {
  float* at = static_cast<float*>(memory);
  const auto take = [&](std::int64_t count) {
    float* taken = at;
    at += count;
    return taken;
  };
  Scratch s;
  s.query = take(head_dim * tile_row());
  s.output = take(head_dim * tile_row());
  s.weights = take(keys_per_block * tile_row());
  s.maximum = take(tile_row());
  s.sum = take(tile_row());
  s.rescale = take(tile_row());
  s.slopes = take(2 * tile_row());
  s.ints = reinterpret_cast<std::int32_t*>(take(3 * tile_row()));
  s.keys = take(static_cast<std::int64_t>(keys_per_block) * head_dim);
  s.values = take(static_cast<std::int64_t>(keys_per_block) * head_dim);
  return s;
}

inline float* lane_row(float* rows, std::int64_t row) { return rows + row * tile_row(); }

inline f32v vector_of(const float* rows, std::int64_t row, int v) {
  return load<f32v>(rows + row * tile_row() + v * lanes);
}

inline void store_vector(float* rows, std::int64_t row, int v, f32v value) {
  store(rows + row * tile_row() + v * lanes, value);
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

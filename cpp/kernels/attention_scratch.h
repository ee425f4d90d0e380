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

// Of one tile; rows of queries_per_tile floats.
struct Scratch {
  float* query;          // [head_dim]
  float* output;         // [head_dim]
  float* scores[2];      // [keys_per_block]: of the block at hand, and of the one before it
  float* maximum;        // [1], log2 domain
  float* sum;            // [1], relative to the maximum
  float* log_sum;        // [1], a lower bound of the logarithm of what was summed
  float* block_maximum;  // [1], of the block at hand
  float* rescale;        // [1]: what the last raise of the maximum does to earlier sums
  float* slopes;         // [2]: left, right, times log2 e
  std::int32_t* ints;    // [4]: query positions, least and greatest distances, ends of sinks
};

// Room for rows of keys_per_block keys, of as many values and of queries_per_tile queries, for all
// tiles of a group.
struct RowScratch {
  float* keys;
  float* values;
};

inline std::int64_t tile_row() { return queries_per_tile; }

// Hands out pieces of a thread's memory, or counts them if there is none yet.
class Pieces {
 public:
  explicit Pieces(void* memory = nullptr) : memory_(static_cast<float*>(memory)) {}

  Scratch tile(int head_dim) {
    Scratch s;
    s.query = take(head_dim * tile_row());
    s.output = take(head_dim * tile_row());
    for (float*& scores : s.scores) scores = take(keys_per_block * tile_row());
    s.maximum = take(tile_row());
    s.sum = take(tile_row());
    s.log_sum = take(tile_row());
    s.block_maximum = take(tile_row());
    s.rescale = take(tile_row());
    s.slopes = take(2 * tile_row());
    s.ints = reinterpret_cast<std::int32_t*>(take(4 * tile_row()));
    return s;
  }

  RowScratch rows(int head_dim) {
    RowScratch s;
    s.keys = take(static_cast<std::int64_t>(keys_per_block) * head_dim);
    s.values = take(static_cast<std::int64_t>(keys_per_block) * head_dim);
    return s;
  }

  std::int64_t bytes() const { return taken_ * static_cast<std::int64_t>(sizeof(float)); }

  float* take(std::int64_t count) {
    float* piece = memory_ == nullptr ? nullptr : memory_ + taken_;
    taken_ += count;
    return piece;
  }

 private:
  float* memory_;
  std::int64_t taken_ = 0;
};

inline float* lane_row(float* rows, std::int64_t row) { return rows + row * tile_row(); }

inline f32v vector_of(const float* rows, std::int64_t row, int v) {
  return load<f32v>(rows + row * tile_row() + v * lanes);
}

inline void store_vector(float* rows, std::int64_t row, int v, f32v value) {
  store(rows + row * tile_row() + v * lanes, value);
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

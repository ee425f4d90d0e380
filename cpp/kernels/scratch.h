// The memory of one thread while it works on tiles of queries.
#pragma once

#include "kernels/attention.h"
#include "kernels/constants.h"
#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

// The state of one tile, in rows of queries_per_tile floats.
struct Scratch {
  float* query;          // [head_dim]
  float* output;         // [head_dim]
  float* scores[2];      // [keys_per_block]: of the current block and of the one before it
  float* maximum;        // [1], log2 domain
  float* sum;            // [1], relative to the maximum
  float* log_sum;        // [1], a lower bound of log2 of the whole sum so far
  float* block_maximum;  // [1], of the current block
  float* rescale;        // [1]: the factor for earlier sums after the maximum rose
  float* slopes;         // [2]: left and right slopes times log2 e
  float* scales;         // [1], times log2 e
  std::int32_t* ints;  // [5]: query positions, least and greatest distances, ends of sinks, origins
};

// Memory for the converted rows of a block, which all tiles of a group share. It also holds the
// rows of queries_per_tile queries or results.
struct RowScratch {
  float* keys;
  float* values;
};

inline std::int64_t tile_row() { return queries_per_tile; }

// Divides a thread's memory into pieces, or only counts their bytes if there is no memory yet.
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
    s.scales = take(tile_row());
    s.ints = reinterpret_cast<std::int32_t*>(take(5 * tile_row()));
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

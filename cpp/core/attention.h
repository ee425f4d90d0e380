// Attention over whole tensors: tiles, key lists and threads.
#pragma once

#include <cstdint>

#include "core/bias_tensor.h"
#include "kernels/kernels.h"

namespace ntk_alibi {

// A tensor (batch, heads, rows, head_dim) whose last axis is adjacent; strides in elements.
struct TensorView {
  void* data;
  std::int64_t batch_stride;
  std::int64_t head_stride;
  std::int64_t row_stride;
};

// Positions (batch, length); a batch stride of 0 shares them. No data: consecutive, the last query
// at the last key.
struct PositionView {
  const std::int32_t* data;
  std::int64_t batch_stride;
};

// Which keys a query sees, besides key_mask: those at distances d with d >= 0 if causal, d < window
// and -d < window, and with causal_block > 0 in its own and the previous block of so many
// positions; and those at positions below sink (if d >= 0 or not causal).
struct MaskRule {
  bool causal;
  std::int64_t window;        // INT32_MAX: none
  std::int64_t causal_block;  // 0: none
  std::int64_t sink;
};

struct AttentionBias {
  BiasKind kind;  // one_sided is found out, not asked for
  SlopeView left, right;
  // table (heads, ...), element d - table_begin for distance d
  const float* table;
  std::int64_t table_head_stride, table_begin, table_size;
  // sums (batch, heads, positions), for the keys; the queries are its last ones
  const double* sums;
  std::int64_t sums_batch_stride, sums_head_stride;
  // dense (batch, heads, queries, keys)
  const float* dense;
  std::int64_t dense_strides[4];
};

struct AttentionProblem {
  DType dtype;
  TensorView query, key, value, output;
  float* logsumexp;  // (batch, heads, queries), contiguous, or null
  std::int64_t batch, query_heads, key_heads, query_length, key_length, head_dim;
  float scale;
  PositionView query_positions, key_positions;
  const std::uint8_t* key_mask;  // (batch, keys), contiguous, 0 for padding; or null
  MaskRule mask;
  AttentionBias bias;
  // (batch, key heads) runs of norms, key_norms_stride apart, of consecutive keys that are all
  // real; or null: measured where needed
  const BlockNorms* key_norms;
  std::int64_t key_norms_stride;
  double skip_tolerance;       // 0: visit every block that is not masked
  std::int64_t* block_counts;  // (batch, heads, 2), visited and visible ones are added; or null
};

void attention(const AttentionProblem& problem);

// Fills norms (batch, key heads, blocks) from first_block on, for the first block_count blocks of
// 64 keys; `up_to` goes on from the block before, `from` is not known while keys are appended:
// infinite.
struct KeyNormsShape {
  std::int64_t batch, key_heads, key_length, head_dim;
};
void measure_key_norms(const KeyNormsShape& shape, const TensorView& key, DType dtype,
                       std::int64_t first_block, BlockNorms* norms, std::int64_t norms_stride);

}  // namespace ntk_alibi

// Attention over whole tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "core/mask_rule.h"
#include "core/table_bounds.h"
#include "core/tensor_view.h"
#include "kernels/kernels.h"

namespace ntk_alibi {

struct AttentionBias {
  BiasKind kind;  // never one_sided: the core chooses that form tile by tile
  QueryView left, right;
  bool hides_sides;  // whether a slope is infinite, which hides its side
  // table (heads, distances); element d - table_begin belongs to distance d
  const float* table;
  std::int64_t table_head_stride, table_begin, table_size;
  std::shared_ptr<const TableBounds> table_bounds;  // of the table; if null, each call makes them
  // sums (batch, heads, keys); the queries take the last ones
  const double* sums;
  std::int64_t sums_batch_stride, sums_head_stride;
  // dense (batch, heads, queries, keys)
  const float* dense;
  std::int64_t dense_strides[4];
};

class BlockMask;
class Visibility;

// The part of a mask of pairs that a problem has, from this row, query and key on. Without a mask
// all pairs are visible.
struct PairMask {
  const BlockMask* mask;
  std::int64_t first_row, first_query, first_key;
};

constexpr int kinds_of_counts = 3;

struct AttentionProblem {
  DType dtype;  // of all tensors but keys and values with scales
  TensorView query, key, value, output;
  ScaleView key_scales, value_scales;
  double* logsumexp;  // (batch, heads, queries), or null
  std::int64_t batch, query_heads, key_heads, query_length, key_length, head_dim;
  // The lengths of rows in arrays without strides of their own, (batch, heads, queries) and (batch,
  // keys): query_length and key_length, unless the problem is one of several segments in a row.
  std::int64_t query_pitch, key_pitch;
  float scale;
  QueryView factors;  // of the products q.k, besides the scale; without data all are 1
  PositionView query_positions, key_positions;
  const std::uint8_t* key_mask;  // (batch, keys), 0 for padding; or null
  MaskRule mask;
  std::shared_ptr<const Visibility> visibility;  // of all these; if null, each call makes it
  PairMask pairs = {nullptr, 0, 0, 0};
  AttentionBias bias;
  // Of the first row, head and query, and of the first key.
  Dropout dropout = {0, 1.0f, {0, 0}, 0, 0, 0, 0};
  // Norms (batch, key heads, blocks) of unpadded, consecutive keys, with key_norms_stride from head
  // to head, and the centres (batch, key heads, head_dim) that they are measured from. If null, the
  // core measures them where it needs them.
  const BlockNorms* key_norms;
  const float* key_centres;
  std::int64_t key_norms_stride;
  // (batch, heads, queries): logsumexps over other keys, which count as read when keys
  // are skipped; or null.
  const double* known_logsumexps;
  // Keys may be skipped if they are proven to weigh, together, at most this share of each query's
  // sum. 0.0 skips what rounding loses anyway; without a number, every visible block is read.
  std::optional<double> skip_tolerance = 0.0;
  // (batch, heads, kinds_of_counts): scored, visible and weighed blocks are added; or null.
  std::int64_t* block_counts;
};

void attention(const AttentionProblem& problem);

}  // namespace ntk_alibi

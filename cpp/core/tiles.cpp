#include "core/tiles.h"

#include <cmath>
#include <limits>

namespace ntk_alibi {
namespace {

constexpr std::int32_t least_int = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t greatest_int = std::numeric_limits<std::int32_t>::max();

// Nothing but distance 0 is left of any that is near it; times log2 e it must stay finite.
constexpr float greatest_slope = 1e38f;

std::int32_t query_position(const AttentionProblem& problem, std::int64_t b, std::int64_t i) {
  const PositionView& view = problem.query_positions;
  return view.data ? view.data[b * view.batch_stride + i]
                   : static_cast<std::int32_t>(problem.key_length - problem.query_length + i);
}

void set_interval(const MaskRule& rule, TileRows& rows, int r) {
  const bool windowed = rule.window < greatest_int;
  std::int64_t most = windowed ? rule.window - 1 : greatest_int;
  if (rule.causal_block > 0) {
    const std::int64_t position = rows.positions[r];
    const std::int64_t block =
        position >= 0 ? position / rule.causal_block : -((-position - 1) / rule.causal_block) - 1;
    most = std::min(most, position - (block - 1) * rule.causal_block);
  }
  rows.least_distances[r] = rule.causal ? 0
                            : windowed  ? static_cast<std::int32_t>(1 - rule.window)
                                        : least_int;
  rows.greatest_distances[r] = static_cast<std::int32_t>(most);
  rows.sink_ends[r] = static_cast<std::int32_t>(rule.sink);
}

// An infinite slope hides its side, sinks behind included; the kernel gets finite ones.
void set_slopes(const AttentionBias& bias, std::int64_t b, std::int64_t h, std::int64_t i,
                TileRows& rows, int r) {
  const auto at = [&](const SlopeView& view) {
    return view.data[b * view.batch_stride + h * view.head_stride + i * view.query_stride];
  };
  const float left = at(bias.left), right = at(bias.right);
  if (std::isinf(left)) {
    rows.greatest_distances[r] = std::min(rows.greatest_distances[r], 0);
    rows.sink_ends[r] = 0;
  }
  if (std::isinf(right)) rows.least_distances[r] = std::max(rows.least_distances[r], 0);
  rows.left_slopes[r] = std::isinf(left) ? 0.0f : std::min(left, greatest_slope);
  rows.right_slopes[r] = std::isinf(right) ? 0.0f : std::min(right, greatest_slope);
}

constexpr double log2_e = 1.44269504088896340736;

// Bounds of no values, and of those of `bound` and one more, log2 domain.
constexpr BiasBound nothing{-std::numeric_limits<double>::infinity(),
                            -std::numeric_limits<double>::infinity()};

BiasBound extended(const BiasBound& bound, double value) {
  if (value == nothing.each) return bound;
  const double greater = std::max(bound.sum, value), less = std::min(bound.sum, value);
  const bool proven = value < std::numeric_limits<double>::infinity();  // nor NaN
  if (!proven)
    return {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  return {std::max(bound.each, value), greater + std::log2(1.0 + std::exp2(less - greater))};
}

}  // namespace

void* row_of(const TensorView& view, DType dtype, std::int64_t b, std::int64_t h,
             std::int64_t row) {
  return static_cast<char*>(view.data) +
         element_size(dtype) *
             (b * view.batch_stride + h * view.head_stride + row * view.row_stride);
}

void measure_blocks(const KernelTable& kernels, const KeyList& keys, const void* data,
                    std::int64_t row_stride, std::int64_t head_dim, DType dtype,
                    std::int64_t first_block, BlockNorms* norms) {
  const std::int64_t blocks = block_count(keys.count);
  for (std::int64_t k = first_block; k < blocks; ++k) {
    norms[k].own =
        kernels.greatest_norm(keys, k, data, row_stride, static_cast<int>(head_dim), dtype);
    norms[k].up_to = k ? std::max(norms[k].own, norms[k - 1].up_to) : norms[k].own;
    norms[k].from = std::numeric_limits<float>::infinity();
  }
}

Tiles::Tiles(const AttentionProblem& problem)
    : problem_(problem),
      kernels_(active_kernels()),
      lists_(key_lists(problem)),
      blocks_(block_count(problem.key_length)) {
  const BiasKind kind = problem.bias.kind;
  if (problem.skip_tolerance == 0.0 || kind == BiasKind::none || kind == BiasKind::dense) return;
  find_norms();
  if (kind == BiasKind::table) find_table_bounds();
  if (kind == BiasKind::sums) find_sum_bounds();
}

void Tiles::find_norms() {
  const AttentionProblem& p = problem_;
  key_norms_ = p.key_norms;
  key_norms_stride_ = p.key_norms_stride;
  if (key_norms_ != nullptr) return;
  norms_.resize(p.batch * p.key_heads * blocks_);
  key_norms_ = norms_.data();
  key_norms_stride_ = blocks_;
  parallel_for(p.batch * p.key_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t b = row / p.key_heads, h = row % p.key_heads;
      const KeyList keys = keys_of(b).view();
      const std::int64_t blocks = block_count(keys.count);
      BlockNorms* norms = norms_.data() + row * blocks_;
      measure_blocks(kernels_, keys, row_of(p.key, p.dtype, b, h, 0), p.key.row_stride, p.head_dim,
                     p.dtype, 0, norms);
      for (std::int64_t k = blocks - 1; k >= 0; --k)
        norms[k].from = k + 1 < blocks ? std::max(norms[k].own, norms[k + 1].from) : norms[k].own;
    }
  });
}

void Tiles::find_table_bounds() {
  const AttentionBias& bias = problem_.bias;
  bounds_per_head_ = bias.table_size;
  behind_.resize(problem_.query_heads * bounds_per_head_);
  ahead_.resize(behind_.size());
  parallel_for(problem_.query_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t h = begin; h < end; ++h) {
      const float* table = bias.table + h * bias.table_head_stride;
      BiasBound* behind = behind_.data() + h * bounds_per_head_;
      BiasBound* ahead = ahead_.data() + h * bounds_per_head_;
      BiasBound bound = nothing;
      for (std::int64_t t = bias.table_size - 1; t >= 0; --t)
        behind[t] = bound = extended(bound, table[t] * log2_e);
      bound = nothing;
      for (std::int64_t t = 0; t < bias.table_size; ++t)
        ahead[t] = bound = extended(bound, table[t] * log2_e);
    }
  });
}

void Tiles::find_sum_bounds() {
  const AttentionBias& bias = problem_.bias;
  bounds_per_head_ = blocks_;
  behind_.resize(problem_.batch * problem_.query_heads * blocks_);
  ahead_.resize(behind_.size());
  parallel_for(problem_.batch * problem_.query_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t b = row / problem_.query_heads, h = row % problem_.query_heads;
      const double* sums = bias.sums + b * bias.sums_batch_stride + h * bias.sums_head_stride;
      const KeyList keys = keys_of(b).view();
      const std::int64_t blocks = block_count(keys.count);
      BiasBound* behind = behind_.data() + row * blocks_;
      BiasBound* ahead = ahead_.data() + row * blocks_;
      const auto with_block = [&](BiasBound bound, std::int64_t k) {
        bound.each = nothing.each;
        const std::int64_t last = std::min<std::int64_t>((k + 1) * keys_per_block, keys.count);
        for (std::int64_t c = k * keys_per_block; c < last; ++c)
          bound = extended(bound, -sums[keys.indices ? keys.indices[c] : c] * log2_e);
        return bound;
      };
      BiasBound bound = nothing;
      for (std::int64_t k = 0; k < blocks; ++k) behind[k] = bound = with_block(bound, k);
      bound = nothing;
      for (std::int64_t k = blocks - 1; k >= 0; --k) ahead[k] = bound = with_block(bound, k);
    }
  });
}

AttentionTile Tiles::described(std::int64_t b, std::int64_t h, std::int64_t first,
                               std::int64_t count, TileRows& rows) const {
  const AttentionProblem& p = problem_;
  const AttentionBias& bias = p.bias;
  const bool linear = bias.kind == BiasKind::two_sided;
  const std::int64_t kv_head = h / (p.query_heads / p.key_heads);
  bool right_side_visible = false;
  const double* sums =
      bias.sums ? bias.sums + b * bias.sums_batch_stride + h * bias.sums_head_stride : nullptr;
  for (int r = 0; r < count; ++r) {
    const std::int64_t i = first + r;
    rows.positions[r] = query_position(p, b, i);
    set_interval(p.mask, rows, r);
    if (linear) set_slopes(bias, b, h, i, rows, r);
    if (sums) rows.sums[r] = sums[p.key_length - p.query_length + i];
    right_side_visible = right_side_visible || rows.least_distances[r] < 0;
  }
  AttentionTile tile;
  tile.dtype = p.dtype;
  tile.query = row_of(p.query, p.dtype, b, h, first);
  tile.key = row_of(p.key, p.dtype, b, kv_head, 0);
  tile.value = row_of(p.value, p.dtype, b, kv_head, 0);
  tile.output = row_of(p.output, p.dtype, b, h, first);
  tile.logsumexp =
      p.logsumexp ? p.logsumexp + (b * p.query_heads + h) * p.query_length + first : nullptr;
  tile.query_stride = p.query.row_stride;
  tile.key_stride = p.key.row_stride;
  tile.value_stride = p.value.row_stride;
  tile.output_stride = p.output.row_stride;
  tile.query_count = static_cast<int>(count);
  tile.head_dim = static_cast<int>(p.head_dim);
  tile.scale = p.scale;
  tile.query_positions = rows.positions;
  tile.keys = keys_of(b).view();
  tile.mask = {rows.least_distances, rows.greatest_distances, rows.sink_ends};
  tile.bias.kind = linear && !right_side_visible ? BiasKind::one_sided : bias.kind;
  tile.bias.left_slopes = rows.left_slopes;
  tile.bias.right_slopes = rows.right_slopes;
  tile.bias.table = bias.table ? bias.table + h * bias.table_head_stride : nullptr;
  tile.bias.table_begin = bias.table_begin;
  tile.bias.table_size = bias.table_size;
  tile.bias.query_sums = rows.sums;
  tile.bias.key_sums = sums;
  tile.bias.dense = bias.dense ? bias.dense + b * bias.dense_strides[0] +
                                     h * bias.dense_strides[1] + first * bias.dense_strides[2]
                               : nullptr;
  tile.bias.dense_query_stride = bias.dense_strides[2];
  tile.bias.dense_key_stride = bias.dense_strides[3];
  const std::int64_t bounds_row = bias.kind == BiasKind::table ? h : b * p.query_heads + h;
  const auto bounds_of = [&](const std::vector<BiasBound>& bounds) {
    return bounds.empty() ? nullptr : bounds.data() + bounds_row * bounds_per_head_;
  };
  tile.skipping = {
      p.skip_tolerance,
      key_norms_ ? key_norms_ + (b * p.key_heads + kv_head) * key_norms_stride_ : nullptr,
      bounds_of(behind_), bounds_of(ahead_)};
  return tile;
}

}  // namespace ntk_alibi

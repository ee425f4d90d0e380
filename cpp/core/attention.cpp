#include "core/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "core/isa.h"
#include "core/parallel.h"

namespace ntk_alibi {
namespace {

constexpr std::int32_t least_int = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t greatest_int = std::numeric_limits<std::int32_t>::max();
constexpr std::align_val_t scratch_alignment{64};

std::int64_t element_size(DType dtype) { return dtype == DType::float32 ? 4 : 2; }

std::int32_t clamp(std::int64_t value) {
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(value, least_int, greatest_int));
}

void* row_of(const TensorView& view, DType dtype, std::int64_t b, std::int64_t h,
             std::int64_t row) {
  return static_cast<char*>(view.data) +
         element_size(dtype) *
             (b * view.batch_stride + h * view.head_stride + row * view.row_stride);
}

// The real keys of one batch row and where they stand.
class OwnedKeyList {
 public:
  OwnedKeyList(const AttentionProblem& problem, std::int64_t b) {
    const std::uint8_t* mask =
        problem.key_mask ? problem.key_mask + b * problem.key_length : nullptr;
    const PositionView& view = problem.key_positions;
    const std::int32_t* positions = view.data ? view.data + b * view.batch_stride : nullptr;
    for (std::int64_t k = 0; k < problem.key_length; ++k) {
      if (mask && !mask[k]) continue;
      indices_.push_back(static_cast<std::int32_t>(k));
      positions_.push_back(positions ? positions[k] : static_cast<std::int32_t>(k));
    }
    for (std::size_t begin = 0; begin < positions_.size(); begin += keys_per_block) {
      const std::size_t end = std::min<std::size_t>(begin + keys_per_block, positions_.size());
      const auto [least, greatest] =
          std::minmax_element(positions_.begin() + begin, positions_.begin() + end);
      blocks_.push_back({*least, *greatest});
    }
    rise_ = std::adjacent_find(positions_.begin(), positions_.end(), std::greater_equal<>()) ==
            positions_.end();
  }

  KeyList view() const {
    return {static_cast<std::int64_t>(indices_.size()), indices_.data(), positions_.data(),
            blocks_.data(), rise_};
  }

 private:
  std::vector<std::int32_t> indices_, positions_;
  std::vector<KeyBlock> blocks_;
  bool rise_;
};

std::vector<OwnedKeyList> key_lists(const AttentionProblem& problem) {
  const bool shared = !problem.key_mask && problem.key_positions.batch_stride == 0;
  std::vector<OwnedKeyList> lists;
  for (std::int64_t b = 0; b < (shared ? 1 : problem.batch); ++b) lists.emplace_back(problem, b);
  return lists;
}

// Everything of a tile that has one value for each query.
struct TileRows {
  std::int32_t positions[most_queries_per_tile];
  std::int32_t least_distances[most_queries_per_tile];
  std::int32_t greatest_distances[most_queries_per_tile];
  float left_slopes[most_queries_per_tile];
  float right_slopes[most_queries_per_tile];
  double sums[most_queries_per_tile];
};

std::int32_t query_position(const AttentionProblem& problem, std::int64_t b, std::int64_t i) {
  const PositionView& view = problem.query_positions;
  return view.data ? view.data[b * view.batch_stride + i]
                   : static_cast<std::int32_t>(problem.key_length - problem.query_length + i);
}

void set_interval(const MaskRule& rule, std::int32_t position, TileRows& rows, int r) {
  const bool windowed = rule.window < greatest_int;
  rows.least_distances[r] = rule.causal ? 0
                            : windowed  ? static_cast<std::int32_t>(1 - rule.window)
                                        : least_int;
  std::int64_t greatest = windowed ? rule.window - 1 : greatest_int;
  if (rule.key_block > 0) {
    const std::int64_t own = static_cast<std::int64_t>(
        std::floor(static_cast<double>(position) / static_cast<double>(rule.key_block)));
    greatest = std::min(greatest, position - (own - 1) * rule.key_block);
  }
  rows.greatest_distances[r] = clamp(greatest);
}

// An infinite slope hides its side; the kernel gets finite ones.
void set_slopes(const AttentionBias& bias, std::int64_t b, std::int64_t h, std::int64_t i,
                TileRows& rows, int r) {
  const auto at = [&](const SlopeView& view) {
    return view.data[b * view.batch_stride + h * view.head_stride + i * view.query_stride];
  };
  const float left = at(bias.left), right = at(bias.right);
  if (std::isinf(left)) rows.greatest_distances[r] = std::min(rows.greatest_distances[r], 0);
  if (std::isinf(right)) rows.least_distances[r] = std::max(rows.least_distances[r], 0);
  rows.left_slopes[r] = std::isinf(left) ? 0.0f : left;
  rows.right_slopes[r] = std::isinf(right) ? 0.0f : right;
}

class Tiles {
 public:
  explicit Tiles(const AttentionProblem& problem)
      : problem_(problem), kernels_(active_kernels()), lists_(key_lists(problem)) {
    per_head_ = (problem.query_length + kernels_.queries_per_tile - 1) / kernels_.queries_per_tile;
    blocks_ = (problem.key_length + keys_per_block - 1) / keys_per_block;
    if (problem.skip_tolerance > 0.0 && problem.bias.kind == BiasKind::two_sided) measure_norms();
  }

  std::int64_t count() const { return problem_.batch * problem_.query_heads * per_head_; }
  std::int64_t scratch_bytes() const {
    return kernels_.attention_scratch_bytes(static_cast<int>(problem_.head_dim));
  }

  void run(std::int64_t number, void* scratch) const {
    // All tiles of a head in a row, so that its keys and values stay in the caches; the last tile
    // first, which with a causal mask sees the most keys.
    const std::int64_t row = number / per_head_, t = per_head_ - 1 - number % per_head_;
    const std::int64_t b = row / problem_.query_heads, h = row % problem_.query_heads;
    const std::int64_t first = t * kernels_.queries_per_tile;
    TileRows rows;
    AttentionTile tile = described(b, h, first, rows);
    const std::int64_t visited = kernels_.attention_tile(tile, scratch);
    if (problem_.block_counts == nullptr) return;
    std::int64_t* counts = problem_.block_counts + 2 * row;
    __atomic_fetch_add(counts, visited, __ATOMIC_RELAXED);
    __atomic_fetch_add(counts + 1, kernels_.visible_blocks(tile), __ATOMIC_RELAXED);
  }

 private:
  const OwnedKeyList& keys_of(std::int64_t b) const { return lists_[lists_.size() > 1 ? b : 0]; }

  void measure_norms() {
    const AttentionProblem& p = problem_;
    norms_.resize(p.batch * p.key_heads * blocks_);
    parallel_for(p.batch * p.key_heads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t b = row / p.key_heads, h = row % p.key_heads;
        const KeyList keys = keys_of(b).view();
        const void* data = row_of(p.key, p.dtype, b, h, 0);
        BlockNorms* norms = norms_.data() + row * blocks_;
        const std::int64_t blocks = (keys.count + keys_per_block - 1) / keys_per_block;
        for (std::int64_t k = 0; k < blocks; ++k) {
          const std::int64_t first = k * keys_per_block;
          norms[k].own = kernels_.greatest_norm(
              data, p.key.row_stride, static_cast<int>(p.head_dim), p.dtype, keys.indices + first,
              std::min<std::int64_t>(keys_per_block, keys.count - first));
          norms[k].up_to = k ? std::max(norms[k].own, norms[k - 1].up_to) : norms[k].own;
        }
        for (std::int64_t k = blocks - 1; k >= 0; --k)
          norms[k].from = k + 1 < blocks ? std::max(norms[k].own, norms[k + 1].from) : norms[k].own;
      }
    });
  }

  AttentionTile described(std::int64_t b, std::int64_t h, std::int64_t first,
                          TileRows& rows) const {
    const AttentionProblem& p = problem_;
    const AttentionBias& bias = p.bias;
    const bool linear = bias.kind == BiasKind::two_sided;
    const std::int64_t kv_head = h / (p.query_heads / p.key_heads);
    const std::int64_t count =
        std::min<std::int64_t>(kernels_.queries_per_tile, p.query_length - first);
    bool right_side_visible = false;
    const double* sums =
        bias.sums ? bias.sums + b * bias.sums_batch_stride + h * bias.sums_head_stride : nullptr;
    for (int r = 0; r < count; ++r) {
      const std::int64_t i = first + r;
      rows.positions[r] = query_position(p, b, i);
      set_interval(p.mask, rows.positions[r], rows, r);
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
    tile.mask = {rows.least_distances, rows.greatest_distances, clamp(p.mask.sink)};
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
    tile.skipping = {p.skip_tolerance, norms_.empty()
                                           ? nullptr
                                           : norms_.data() + (b * p.key_heads + kv_head) * blocks_};
    return tile;
  }

  const AttentionProblem& problem_;
  const KernelTable& kernels_;
  std::vector<OwnedKeyList> lists_;
  std::vector<BlockNorms> norms_;  // (batch, key heads, blocks)
  std::int64_t per_head_, blocks_;
};

}  // namespace

void attention(const AttentionProblem& problem) {
  const Tiles tiles(problem);
  std::atomic<std::int64_t> next{0};
  // Tiles differ in cost, so each thread takes the next one when it is done.
  const std::int64_t workers = std::min<std::int64_t>(num_threads(), tiles.count());
  parallel_for(workers, 1, [&](std::int64_t, std::int64_t) {
    void* scratch = ::operator new(tiles.scratch_bytes(), scratch_alignment);
    for (std::int64_t tile = next++; tile < tiles.count(); tile = next++) tiles.run(tile, scratch);
    ::operator delete(scratch, scratch_alignment);
  });
}

}  // namespace ntk_alibi

#include "core/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "core/isa.h"
#include "core/parallel.h"

namespace ntk_alibi {
namespace {

constexpr std::int32_t least_int = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t greatest_int = std::numeric_limits<std::int32_t>::max();
constexpr std::align_val_t scratch_alignment{64};

// Nothing but distance 0 is left of any that is near it; times log2 e it must stay finite.
constexpr float greatest_slope = 1e38f;

constexpr std::int64_t groups_per_thread = 8;

// A tile computes for all its lanes; up to so many queries are cheaper one by one.
constexpr std::int64_t most_decoded_queries = 2;

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
    consecutive_ = !mask && !view.data;
    count_ = problem.key_length;
    if (consecutive_) return;
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
    if (consecutive_) return {count_, nullptr, nullptr, nullptr, true};
    return {static_cast<std::int64_t>(indices_.size()), indices_.data(), positions_.data(),
            blocks_.data(), rise_};
  }

 private:
  std::vector<std::int32_t> indices_, positions_;
  std::vector<KeyBlock> blocks_;
  std::int64_t count_;
  bool consecutive_, rise_;
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
  std::int32_t sink_ends[most_queries_per_tile];
  float left_slopes[most_queries_per_tile];
  float right_slopes[most_queries_per_tile];
  double sums[most_queries_per_tile];
};

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

// Norms of the blocks from first_block on, but for `from`.
void measure_blocks(const KernelTable& kernels, const KeyList& keys, const void* data,
                    std::int64_t row_stride, std::int64_t head_dim, DType dtype,
                    std::int64_t first_block, BlockNorms* norms) {
  const std::int64_t blocks = (keys.count + keys_per_block - 1) / keys_per_block;
  for (std::int64_t k = first_block; k < blocks; ++k) {
    norms[k].own =
        kernels.greatest_norm(keys, k, data, row_stride, static_cast<int>(head_dim), dtype);
    norms[k].up_to = k ? std::max(norms[k].own, norms[k - 1].up_to) : norms[k].own;
    norms[k].from = std::numeric_limits<float>::infinity();
  }
}

// Calls body(task, scratch) for every task. Tasks differ in cost, so each thread takes the next one
// when it is done.
template <class Body>
void for_each_task(std::int64_t tasks, std::int64_t scratch_bytes, Body&& body) {
  std::atomic<std::int64_t> next{0};
  const std::int64_t workers = std::min<std::int64_t>(num_threads(), tasks);
  parallel_for(workers, 1, [&](std::int64_t, std::int64_t) {
    void* scratch = ::operator new(scratch_bytes, scratch_alignment);
    for (std::int64_t task = next++; task < tasks; task = next++) body(task, scratch);
    ::operator delete(scratch, scratch_alignment);
  });
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

class Tiles {
 public:
  explicit Tiles(const AttentionProblem& problem)
      : problem_(problem), kernels_(active_kernels()), lists_(key_lists(problem)) {
    per_head_ = (problem.query_length + kernels_.queries_per_tile - 1) / kernels_.queries_per_tile;
    blocks_ = (problem.key_length + keys_per_block - 1) / keys_per_block;
    // Enough groups for the threads to share out evenly.
    const std::int64_t tiles = problem.batch * problem.query_heads * per_head_;
    group_ =
        std::clamp<std::int64_t>(tiles / (groups_per_thread * num_threads()), 1, tiles_per_group);
    groups_per_head_ = (per_head_ + group_ - 1) / group_;
    const BiasKind kind = problem.bias.kind;
    if (problem.skip_tolerance == 0.0 || kind == BiasKind::none || kind == BiasKind::dense) return;
    find_norms();
    if (kind == BiasKind::table) find_table_bounds();
    if (kind == BiasKind::sums) find_sum_bounds();
  }

  // Groups of tiles.
  std::int64_t count() const { return problem_.batch * problem_.query_heads * groups_per_head_; }
  std::int64_t scratch_bytes() const {
    return kernels_.attention_scratch_bytes(static_cast<int>(problem_.head_dim));
  }

  void run(std::int64_t number, void* scratch) const {
    // All groups of a head in a row, so that its keys and values stay in the caches; the last one
    // first, which with a causal mask sees the most keys.
    const std::int64_t row = number / groups_per_head_;
    const std::int64_t b = row / problem_.query_heads, h = row % problem_.query_heads;
    const std::int64_t begin = (groups_per_head_ - 1 - number % groups_per_head_) * group_;
    const int count = static_cast<int>(std::min(group_, per_head_ - begin));
    TileRows rows[tiles_per_group];
    AttentionTile tiles[tiles_per_group] = {};
    bool one_sided = true;
    for (int t = 0; t < count; ++t) {
      const std::int64_t first = (begin + t) * kernels_.queries_per_tile;
      const std::int64_t left = problem_.query_length - first;
      tiles[t] =
          described(b, h, first, std::min<std::int64_t>(kernels_.queries_per_tile, left), rows[t]);
      one_sided = one_sided && tiles[t].bias.kind == BiasKind::one_sided;
    }
    std::int64_t visited[tiles_per_group];
    for (int t = 0; t < count; ++t)
      if (!one_sided) tiles[t].bias.kind = problem_.bias.kind;
    kernels_.attention_tiles(tiles, count, scratch, visited);
    for (int t = 0; t < count; ++t) count_blocks(row, tiles[t], visited[t]);
  }

  const KernelTable& kernels() const { return kernels_; }

  // Rows are single queries: (batch, head, query) in this order.
  std::int64_t rows() const {
    return problem_.batch * problem_.query_heads * problem_.query_length;
  }
  AttentionTile row_tile(std::int64_t row, TileRows& rows) const {
    const std::int64_t head = row / problem_.query_length;
    return described(head / problem_.query_heads, head % problem_.query_heads,
                     row % problem_.query_length, 1, rows);
  }
  KeyList keys_of_row(std::int64_t row) const {
    return keys_of(row / problem_.query_length / problem_.query_heads).view();
  }

  // Adds to the statistics of a head, numbered as (batch, head).
  void count_blocks(std::int64_t head, const AttentionTile& tile, std::int64_t visited) const {
    if (problem_.block_counts == nullptr) return;
    std::int64_t* counts = problem_.block_counts + 2 * head;
    __atomic_fetch_add(counts, visited, __ATOMIC_RELAXED);
    __atomic_fetch_add(counts + 1, kernels_.visible_blocks(tile), __ATOMIC_RELAXED);
  }

 private:
  const OwnedKeyList& keys_of(std::int64_t b) const { return lists_[lists_.size() > 1 ? b : 0]; }

  void find_norms() {
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
        const std::int64_t blocks = (keys.count + keys_per_block - 1) / keys_per_block;
        BlockNorms* norms = norms_.data() + row * blocks_;
        measure_blocks(kernels_, keys, row_of(p.key, p.dtype, b, h, 0), p.key.row_stride,
                       p.head_dim, p.dtype, 0, norms);
        for (std::int64_t k = blocks - 1; k >= 0; --k)
          norms[k].from = k + 1 < blocks ? std::max(norms[k].own, norms[k + 1].from) : norms[k].own;
      }
    });
  }

  // One for each distance of each head's table.
  void find_table_bounds() {
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

  // One for each block of each row's keys.
  void find_sum_bounds() {
    const AttentionBias& bias = problem_.bias;
    bounds_per_head_ = blocks_;
    behind_.resize(problem_.batch * problem_.query_heads * blocks_);
    ahead_.resize(behind_.size());
    parallel_for(
        problem_.batch * problem_.query_heads, 1, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t row = begin; row < end; ++row) {
            const std::int64_t b = row / problem_.query_heads, h = row % problem_.query_heads;
            const double* sums = bias.sums + b * bias.sums_batch_stride + h * bias.sums_head_stride;
            const KeyList keys = keys_of(b).view();
            const std::int64_t blocks = (keys.count + keys_per_block - 1) / keys_per_block;
            BiasBound* behind = behind_.data() + row * blocks_;
            BiasBound* ahead = ahead_.data() + row * blocks_;
            const auto with_block = [&](BiasBound bound, std::int64_t k) {
              bound.each = nothing.each;
              const std::int64_t last =
                  std::min<std::int64_t>((k + 1) * keys_per_block, keys.count);
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

  AttentionTile described(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count,
                          TileRows& rows) const {
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

  const AttentionProblem& problem_;
  const KernelTable& kernels_;
  std::vector<OwnedKeyList> lists_;
  std::vector<BlockNorms> norms_;  // (batch, key heads, blocks), unless the caller keeps them
  const BlockNorms* key_norms_ = nullptr;
  std::int64_t key_norms_stride_ = 0;
  std::vector<BiasBound> behind_, ahead_;  // see Skipping
  std::int64_t bounds_per_head_ = 0;
  std::int64_t per_head_, blocks_;
  std::int64_t group_, groups_per_head_;  // tiles in a group
};

// Few queries: each is split over its keys. The nearest part goes first and tells the others what
// they need not read.
class Decoding {
 public:
  explicit Decoding(const Tiles& tiles, const AttentionProblem& problem)
      : tiles_(tiles), problem_(problem), rows_(tiles.rows()) {
    for (std::int64_t row = 0; row < rows_; ++row)
      most_parts_ = std::max(most_parts_, part_count(row));
    parts_.resize(rows_ * most_parts_);
    outputs_.resize(rows_ * most_parts_ * problem.head_dim);
    for (std::size_t p = 0; p < parts_.size(); ++p)
      parts_[p] = {-std::numeric_limits<float>::infinity(),
                   0.0f,
                   outputs_.data() + p * problem.head_dim,
                   0,
                   0.0,
                   false};
  }

  void run() {
    work(rows_, [&](std::int64_t row, void* scratch) { decode(row, 0, scratch); });
    std::vector<std::pair<std::int64_t, std::int64_t>> pending;
    for (std::int64_t p = 1; p < most_parts_; ++p)
      for (std::int64_t row = 0; row < rows_; ++row)
        if (p < part_count(row) && !parts_[row * most_parts_].rest_dropped)
          pending.emplace_back(row, p);
    work(pending.size(), [&](std::int64_t task, void* scratch) {
      decode(pending[task].first, pending[task].second, scratch);
    });
    work(rows_, [&](std::int64_t row, void* scratch) {
      TileRows rows;
      const AttentionTile tile = tiles_.row_tile(row, rows);
      tiles_.kernels().merge_parts(tile, parts_.data() + row * most_parts_, most_parts_, scratch);
      std::int64_t visited = 0;
      for (std::int64_t p = 0; p < most_parts_; ++p)
        visited += parts_[row * most_parts_ + p].visited;
      tiles_.count_blocks(row / problem_.query_length, tile, visited);
    });
  }

 private:
  static constexpr std::int64_t blocks_per_part = 128;  // 8192 keys

  std::int64_t block_count(std::int64_t row) const {
    return (tiles_.keys_of_row(row).count + keys_per_block - 1) / keys_per_block;
  }
  std::int64_t part_count(std::int64_t row) const {
    return (block_count(row) + blocks_per_part - 1) / blocks_per_part;
  }

  // Part 0 is the nearest.
  void decode(std::int64_t row, std::int64_t p, void* scratch) {
    TileRows rows;
    AttentionTile tile = tiles_.row_tile(row, rows);
    tile.skipping.tolerance /= static_cast<double>(most_parts_);
    const std::int64_t end = block_count(row) - p * blocks_per_part;
    const double known =
        p ? parts_[row * most_parts_].log_sum : -std::numeric_limits<double>::infinity();
    const DecodeTask task{std::max<std::int64_t>(0, end - blocks_per_part), end, known};
    if (end > 0) tiles_.kernels().decode_part(tile, task, scratch, &parts_[row * most_parts_ + p]);
  }

  template <class Body>
  void work(std::int64_t tasks, Body&& body) const {
    for_each_task(tasks, tiles_.kernels().decode_scratch_bytes(static_cast<int>(problem_.head_dim)),
                  body);
  }

  const Tiles& tiles_;
  const AttentionProblem& problem_;
  std::int64_t rows_, most_parts_ = 1;
  std::vector<DecodePart> parts_;
  std::vector<float> outputs_;
};

bool worth_decoding(const AttentionProblem& problem) {
  const bool linear =
      problem.bias.kind == BiasKind::none || problem.bias.kind == BiasKind::two_sided;
  return linear && problem.query_length <= most_decoded_queries;
}

}  // namespace

void attention(const AttentionProblem& problem) {
  const Tiles tiles(problem);
  if (worth_decoding(problem)) return Decoding(tiles, problem).run();
  for_each_task(tiles.count(), tiles.scratch_bytes(),
                [&](std::int64_t tile, void* scratch) { tiles.run(tile, scratch); });
}

void measure_key_norms(const KeyNormsShape& shape, const TensorView& key, DType dtype,
                       std::int64_t first_block, BlockNorms* norms, std::int64_t norms_stride) {
  const KeyList keys{shape.key_length, nullptr, nullptr, nullptr, true};
  const KernelTable& kernels = active_kernels();
  parallel_for(shape.batch * shape.key_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const void* data = row_of(key, dtype, row / shape.key_heads, row % shape.key_heads, 0);
      measure_blocks(kernels, keys, data, key.row_stride, shape.head_dim, dtype, first_block,
                     norms + row * norms_stride);
    }
  });
}

}  // namespace ntk_alibi

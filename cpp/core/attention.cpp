#include "core/attention.h"

#include <limits>
#include <utility>

#include "core/tiles.h"

namespace ntk_alibi {
namespace {

constexpr std::int64_t groups_per_thread = 8;

// A tile computes for all its lanes; up to so many queries are cheaper one by one.
constexpr std::int64_t most_decoded_queries = 2;

// Many queries: tiles in groups.
class Prefill {
 public:
  Prefill(const Tiles& tiles, const AttentionProblem& problem)
      : tiles_(tiles), problem_(problem), size_(tiles.kernels().queries_per_tile) {
    per_head_ = (problem.query_length + size_ - 1) / size_;
    // Enough groups for the threads to share out evenly.
    const std::int64_t all = problem.batch * problem.query_heads * per_head_;
    group_ =
        std::clamp<std::int64_t>(all / (groups_per_thread * num_threads()), 1, tiles_per_group);
    groups_per_head_ = (per_head_ + group_ - 1) / group_;
  }

  void run() const {
    const std::int64_t bytes =
        tiles_.kernels().attention_scratch_bytes(static_cast<int>(problem_.head_dim));
    for_each_task(problem_.batch * problem_.query_heads * groups_per_head_, bytes,
                  [&](std::int64_t number, void* scratch) { run_group(number, scratch); });
  }

 private:
  void run_group(std::int64_t number, void* scratch) const {
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
      const std::int64_t first = (begin + t) * size_;
      const std::int64_t left = problem_.query_length - first;
      tiles[t] = tiles_.described(b, h, first, std::min<std::int64_t>(size_, left), rows[t]);
      one_sided = one_sided && tiles[t].bias.kind == BiasKind::one_sided;
    }
    std::int64_t visited[tiles_per_group];
    for (int t = 0; t < count; ++t)
      if (!one_sided) tiles[t].bias.kind = problem_.bias.kind;
    tiles_.kernels().attention_tiles(tiles, count, scratch, visited);
    for (int t = 0; t < count; ++t) tiles_.count_blocks(row, tiles[t], visited[t]);
  }

  const Tiles& tiles_;
  const AttentionProblem& problem_;
  const std::int64_t size_;  // queries in a tile
  std::int64_t per_head_, group_, groups_per_head_;
};

// Few queries: each is split over its keys. The nearest part goes first and tells the others what
// they need not read.
class Decoding {
 public:
  explicit Decoding(const Tiles& tiles, const AttentionProblem& problem)
      : tiles_(tiles),
        problem_(problem),
        rows_(problem.batch * problem.query_heads * problem.query_length) {
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
      const AttentionTile tile = row_tile(row, rows);
      tiles_.kernels().merge_parts(tile, parts_.data() + row * most_parts_, most_parts_, scratch);
      std::int64_t visited = 0;
      for (std::int64_t p = 0; p < most_parts_; ++p)
        visited += parts_[row * most_parts_ + p].visited;
      tiles_.count_blocks(row / problem_.query_length, tile, visited);
    });
  }

 private:
  static constexpr std::int64_t blocks_per_part = 128;  // 8192 keys

  std::int64_t blocks_of(std::int64_t row) const { return block_count(keys_of(row).view().count); }
  std::int64_t part_count(std::int64_t row) const {
    return (blocks_of(row) + blocks_per_part - 1) / blocks_per_part;
  }

  // Rows are single queries: (batch, head, query) in this order.
  AttentionTile row_tile(std::int64_t row, TileRows& rows) const {
    const std::int64_t head = row / problem_.query_length;
    return tiles_.described(head / problem_.query_heads, head % problem_.query_heads,
                            row % problem_.query_length, 1, rows);
  }
  const OwnedKeyList& keys_of(std::int64_t row) const {
    return tiles_.keys_of(row / problem_.query_length / problem_.query_heads);
  }

  // Part 0 is the nearest.
  void decode(std::int64_t row, std::int64_t p, void* scratch) {
    TileRows rows;
    AttentionTile tile = row_tile(row, rows);
    tile.skipping.tolerance /= static_cast<double>(most_parts_);
    const std::int64_t end = blocks_of(row) - p * blocks_per_part;
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
  Prefill(tiles, problem).run();
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

#include "core/decoding.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "core/parallel.h"

namespace ntk_alibi {
namespace {

constexpr std::int64_t blocks_per_part = 128;  // 8192 keys

// What a row costs besides its products, in multiply-adds.
constexpr std::int64_t work_per_row = 4096;

// The nearest part of each row goes first. Its sum lets the other parts skip blocks, and tells
// whether they are needed at all.
class Decoding {
 public:
  Decoding(const Tiles& tiles, const AttentionProblem& problem)
      : tiles_(tiles),
        problem_(problem),
        rows_(problem.batch * problem.query_heads * problem.query_length) {
    for (std::int64_t b = 0; b < problem.batch; ++b)
      most_parts_ = std::max(most_parts_, (blocks_of(b) + blocks_per_part - 1) / blocks_per_part);
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
    work(rows_, [&](std::int64_t row, void* scratch, StopCheck) {
      TileRows rows;
      const AttentionTile tile = row_tile(row, rows);
      decode(tile, row, 0, scratch);
      if (most_parts_ == 1) finish(tile, row, scratch);
    });
    if (most_parts_ == 1) return;
    std::vector<std::pair<std::int64_t, std::int64_t>> pending;
    for (std::int64_t p = 1; p < most_parts_; ++p)
      for (std::int64_t row = 0; row < rows_; ++row)
        if (p * blocks_per_part < blocks_of(batch_of(row)) &&
            !parts_[row * most_parts_].rest_dropped)
          pending.emplace_back(row, p);
    work(pending.size(), [&](std::int64_t task, void* scratch, StopCheck) {
      const auto [row, p] = pending[task];
      TileRows rows;
      decode(row_tile(row, rows), row, p, scratch);
    });
    work(rows_, [&](std::int64_t row, void* scratch, StopCheck) {
      TileRows rows;
      finish(row_tile(row, rows), row, scratch);
    });
  }

 private:
  // A row is a single query, numbered as (batch, head, query).
  AttentionTile row_tile(std::int64_t row, TileRows& rows) const {
    const std::int64_t head = row / problem_.query_length;
    return tiles_.describe(head / problem_.query_heads, head % problem_.query_heads,
                           row % problem_.query_length, 1, rows);
  }
  std::int64_t batch_of(std::int64_t row) const {
    return row / problem_.query_length / problem_.query_heads;
  }
  std::int64_t blocks_of(std::int64_t b) const {
    return block_count(tiles_.keys_of(b).view().count);
  }

  // Part 0 holds the last keys, which are the nearest ones.
  void decode(AttentionTile tile, std::int64_t row, std::int64_t p, void* scratch) {
    tile.skipping.max_dropped_share /= static_cast<double>(most_parts_);
    const std::int64_t end = block_count(tile.keys.count) - p * blocks_per_part;
    const double known =
        p ? parts_[row * most_parts_].log_sum : -std::numeric_limits<double>::infinity();
    const DecodeTask task{std::max<std::int64_t>(0, end - blocks_per_part), end, known};
    if (end > 0) tiles_.kernels().decode_part(tile, task, scratch, &parts_[row * most_parts_ + p]);
  }

  // Joins the parts of a row.
  void finish(const AttentionTile& tile, std::int64_t row, void* scratch) const {
    const DecodePart* parts = parts_.data() + row * most_parts_;
    tiles_.kernels().merge_parts(tile, parts, most_parts_, scratch);
    tiles_.refuse_overflow(batch_of(row), tile);
    std::int64_t visited = 0;
    for (std::int64_t p = 0; p < most_parts_; ++p) visited += parts[p].visited;
    tiles_.count_blocks(row / problem_.query_length, tile, visited);
  }

  template <class Body>
  void work(std::int64_t tasks, Body&& body) const {
    const int head_dim = static_cast<int>(problem_.head_dim);
    const std::int64_t keys = std::min(problem_.key_length, blocks_per_part * keys_per_block);
    const std::int64_t grain = tasks_per_thread(work_per_row + 2 * keys * head_dim);
    for_each_task({tasks, grain, TaskOrder::as_listed},
                  {tiles_.kernels().decode_scratch_bytes(head_dim), 0}, body);
  }

  const Tiles& tiles_;
  const AttentionProblem& problem_;
  std::int64_t rows_, most_parts_ = 1;
  std::vector<DecodePart> parts_;
  std::vector<float> outputs_;
};

}  // namespace

void decode(const Tiles& tiles, const AttentionProblem& problem) { Decoding(tiles, problem).run(); }

}  // namespace ntk_alibi

// Tiles of a problem, described for the kernels.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <vector>

#include "core/isa.h"
#include "core/key_lists.h"
#include "core/parallel.h"

namespace ntk_alibi {

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

// Where a row of a tensor begins.
void* row_of(const TensorView& view, DType dtype, std::int64_t b, std::int64_t h, std::int64_t row);

// What all tiles of a problem share: key lists, and what skipping needs to know of the keys and of
// the bias.
class Tiles {
 public:
  explicit Tiles(const AttentionProblem& problem);

  // `count` queries from `first` on; `rows` keeps what the tile points to.
  AttentionTile described(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count,
                          TileRows& rows) const;

  const KernelTable& kernels() const { return kernels_; }
  const OwnedKeyList& keys_of(std::int64_t b) const { return lists_[lists_.size() > 1 ? b : 0]; }

  // Adds to the statistics of a head, numbered as (batch, head).
  void count_blocks(std::int64_t head, const AttentionTile& tile, std::int64_t visited) const {
    if (problem_.block_counts == nullptr) return;
    std::int64_t* counts = problem_.block_counts + 2 * head;
    __atomic_fetch_add(counts, visited, __ATOMIC_RELAXED);
    __atomic_fetch_add(counts + 1, kernels_.visible_blocks(tile), __ATOMIC_RELAXED);
  }

 private:
  void find_norms();
  // One for each distance of each head's table.
  void find_table_bounds();
  // One for each block of each row's keys.
  void find_sum_bounds();

  const AttentionProblem& problem_;
  const KernelTable& kernels_;
  std::vector<OwnedKeyList> lists_;
  std::vector<BlockNorms> norms_;  // (batch, key heads, blocks), unless the caller keeps them
  const BlockNorms* key_norms_ = nullptr;
  std::int64_t key_norms_stride_ = 0;
  std::vector<BiasBound> behind_, ahead_;  // see Skipping
  std::int64_t bounds_per_head_ = 0;
  std::int64_t blocks_;
};

// Norms of the blocks from first_block on, but for `from`.
void measure_blocks(const KernelTable& kernels, const KeyList& keys, const void* data,
                    std::int64_t row_stride, std::int64_t head_dim, DType dtype,
                    std::int64_t first_block, BlockNorms* norms);

constexpr std::align_val_t scratch_alignment{64};

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

}  // namespace ntk_alibi

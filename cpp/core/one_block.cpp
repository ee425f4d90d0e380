#include "core/one_block.h"

#include <algorithm>

#include "core/parallel.h"

namespace ntk_alibi {

void attend_one_block(const Tiles& tiles, const AttentionProblem& problem) {
  const KernelTable& kernels = tiles.kernels();
  const std::int64_t size = kernels.queries_per_vector;
  const std::int64_t per_head = (problem.query_length + size - 1) / size;
  const std::int64_t grain = tasks_per_thread(2 * size * problem.key_length * problem.head_dim);
  const std::int64_t bytes = kernels.one_block_scratch_bytes(static_cast<int>(problem.head_dim));
  const auto run = [&](std::int64_t number, void* scratch, StopCheck) {
    const std::int64_t row = number / per_head, first = number % per_head * size;
    const std::int64_t b = row / problem.query_heads, h = row % problem.query_heads;
    TileRows rows;
    const AttentionTile tile =
        tiles.describe(b, h, first, std::min(size, problem.query_length - first), rows);
    kernels.one_block_tile(tile, scratch);
    tiles.refuse_overflow(b, tile);
    tiles.count_visible_blocks(row, tile);
  };
  const std::int64_t tasks = problem.batch * problem.query_heads * per_head;
  for_each_task({tasks, grain, TaskOrder::as_listed}, {bytes, 0}, run);
}

}  // namespace ntk_alibi

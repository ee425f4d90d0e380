#include "core/prefill.h"

#include <algorithm>

#include "core/parallel.h"

namespace ntk_alibi {
namespace {

// Groups are made small enough for each thread to get this many, which evens out their cost.
constexpr std::int64_t groups_per_thread = 8;

class Prefill {
 public:
  Prefill(const Tiles& tiles, const AttentionProblem& problem)
      : tiles_(tiles), problem_(problem), cut_(tiles.cut()) {
    const std::int64_t all = problem.batch * problem.query_heads * cut_.count();
    group_ =
        std::clamp<std::int64_t>(all / (groups_per_thread * num_threads()), 1, tiles_per_group);
    groups_per_head_ = (cut_.count() + group_ - 1) / group_;
  }

  void run() const {
    const AttentionTile largest = tiles_.largest();
    const std::int64_t bytes = tiles_.kernels().attention_scratch_bytes(largest);
    const std::int64_t tasks = problem_.batch * problem_.query_heads * groups_per_head_;
    const std::int64_t grain =
        tasks_per_thread(2 * group_ * cut_.size() * problem_.key_length * problem_.head_dim);
    for_each_task({tasks, grain, order(largest)}, {bytes, tiles_.kernels().scratch_header_bytes},
                  [&](std::int64_t number, void* scratch, StopCheck stop) {
                    run_group(number, scratch, stop);
                  });
  }

 private:
  // Threads work on heads of their own, whose keys and values stay in their caches. Heads that are
  // too long for those caches pass through the shared one, once if all threads work on one head.
  TaskOrder order(const AttentionTile& tile) const {
    constexpr std::int64_t most_bytes = 4 << 20;
    const std::int64_t bytes = 2 * sizeof(float) * problem_.key_length * problem_.head_dim;
    return read_in_place(tile) && bytes > most_bytes ? TaskOrder::as_listed
                                                     : TaskOrder::neighbours_together;
  }

  void run_group(std::int64_t number, void* scratch, StopCheck stop) const {
    // The groups of a head are consecutive, so that its keys and values stay in the caches. The
    // last group goes first: with a causal mask it sees the most keys.
    const std::int64_t row = number / groups_per_head_;
    const std::int64_t b = row / problem_.query_heads, h = row % problem_.query_heads;
    const std::int64_t begin = (groups_per_head_ - 1 - number % groups_per_head_) * group_;
    const int count = static_cast<int>(std::min(group_, cut_.count() - begin));
    TileRows rows[tiles_per_group];
    AttentionTile tiles[tiles_per_group] = {};
    // All tiles of a group must have the same kind of bias.
    bool same_kind = true;
    for (int t = 0; t < count; ++t) {
      const std::int64_t tile = begin + t;
      tiles[t] = tiles_.describe(b, h, cut_.begin(tile), cut_.queries(tile), rows[t]);
      tiles[t].stop = stop;
      same_kind = same_kind && tiles[t].bias.kind == tiles[0].bias.kind;
    }
    BlocksRead read[tiles_per_group];
    for (int t = 0; t < count; ++t)
      if (!same_kind) tiles[t].bias.kind = problem_.bias.kind;
    tiles_.kernels().attention_tiles(tiles, count, scratch, read);
    for (int t = 0; t < count; ++t) {
      tiles_.refuse_overflow(b, tiles[t]);
      tiles_.count_blocks(row, tiles[t], read[t]);
    }
  }

  const Tiles& tiles_;
  const AttentionProblem& problem_;
  const QueryTiles& cut_;
  std::int64_t group_;  // tiles in a group
  std::int64_t groups_per_head_;
};

}  // namespace

void prefill(const Tiles& tiles, const AttentionProblem& problem) { Prefill(tiles, problem).run(); }

}  // namespace ntk_alibi

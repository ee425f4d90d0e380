// Tiles of a problem, described for the kernels.
#pragma once

#include <cstdint>
#include <memory>

#include "core/attention.h"
#include "core/block_mask.h"
#include "core/isa.h"
#include "core/skip_bounds.h"
#include "core/visibility.h"

namespace ntk_alibi {

// The parts of a tile that have one value for each query and that depend on the head.
struct TileRows {
  std::int32_t least_distances[most_queries_per_tile];
  std::int32_t greatest_distances[most_queries_per_tile];
  std::int32_t sink_ends[most_queries_per_tile];
  std::int32_t origins[most_queries_per_tile];
  double shifts[most_queries_per_tile];
  float left_slopes[most_queries_per_tile];
  float right_slopes[most_queries_per_tile];
  float scales[most_queries_per_tile];
  bool weightless[most_queries_per_tile];
};

// State shared by all tiles of a problem: kernels, key lists, and bounds for skipping.
class Tiles {
 public:
  explicit Tiles(const AttentionProblem& problem);

  // How the queries of a head are cut.
  const QueryTiles& cut() const { return cut_; }

  // Describes the tile of `count` queries from `first` on. The tile points into `rows`.
  AttentionTile describe(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count,
                         TileRows& rows) const;

  // A tile with all that the size of the scratch memory depends on.
  AttentionTile largest() const;

  const KernelTable& kernels() const { return kernels_; }
  const OwnedKeyList& keys_of(std::int64_t b) const { return visibility_->keys().of_row(b); }

  // Throws std::domain_error if results are not finite although all inputs are, or if the scores of
  // all keys that a query sees are minus infinity, which a kernel takes for hidden keys.
  void refuse_overflow(std::int64_t b, const AttentionTile& tile) const;

  // Adds to the statistics of a head, numbered as (batch, head).
  void count_blocks(std::int64_t head, const AttentionTile& tile, const BlocksRead& read) const;

  // The same for a tile that reads all blocks that it sees.
  void count_visible_blocks(std::int64_t head, const AttentionTile& tile) const;

 private:
  void hide_sides(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count,
                  QueryRows& queries, TileRows& rows) const;
  void describe_slopes(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count,
                       const QueryRows& queries, TileRows& rows) const;
  TileBias describe_bias(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count,
                         const QueryRows& queries, TileRows& rows) const;
  bool overflowed(std::int64_t b, const AttentionTile& tile) const;
  bool sees_a_key(std::int64_t b, const AttentionTile& tile, int query) const;
  bool inputs_are_finite(std::int64_t b, const AttentionTile& tile) const;
  std::int64_t tiles_of_keys() const;
  void add_counts(std::int64_t head, std::int64_t scored, std::int64_t visible,
                  std::int64_t weighed) const;

  const AttentionProblem& problem_;
  const KernelTable& kernels_;
  const std::shared_ptr<const Visibility> visibility_;
  const QueryTiles cut_;
  const PairBits bits_;
  const SkipBounds bounds_;
  const float greatest_scale_;
  float scales_[most_queries_per_tile];  // of the queries of each tile, without factors
};

}  // namespace ntk_alibi

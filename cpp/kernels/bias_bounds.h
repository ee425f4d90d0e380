// Upper bounds of a tile's bias over blocks of keys. All logarithms are to the base 2.
#pragma once

#include "kernels/constants.h"
#include "kernels/key_list.h"
#include "kernels/visible_blocks.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

// fmin and fmax make g++ 12 for aarch64 fail with an internal error when it vectorises them.
inline double smaller(double a, double b) { return b < a ? b : a; }
inline double larger(double a, double b) { return a < b ? b : a; }

// The least of a tile's slopes on one side, log2 domain; infinity for a bias without slopes.
inline double least_slope(const AttentionTile& tile, const float* slopes) {
  double least = __builtin_inf();
  for (int i = 0; slopes != nullptr && i < tile.query_count; ++i)
    least = smaller(least, slopes[i] * log2_e);
  return least;
}

// Bounds that hold for every query of a tile; infinity where there is no proof.
// benchmarks/results/skipping.md derives them.
//   each(b)        the bias of any key of block b
//   back_from(b)   log2 sum_j 2^bias_ij over the keys of block b and the blocks before it
//   ahead_from(b)  log2 sum_j 2^bias_ij over the keys of block b and the blocks after it
class BiasBounds {
 public:
  explicit BiasBounds(const AttentionTile& tile)
      : tile_(tile),
        left_(least_slope(tile, tile.bias.left_slopes)),
        right_(least_slope(tile, tile.bias.right_slopes)) {
    least_origin_ = greatest_origin_ = tile.bias.origins[0];
    for (int i = 1; i < tile.query_count; ++i) {
      least_origin_ = smaller(least_origin_, tile.bias.origins[i]);
      greatest_origin_ = larger(greatest_origin_, tile.bias.origins[i]);
    }
    for (int i = 0; i < tile.query_count && tile.bias.kind == BiasKind::sums; ++i)
      greatest_query_sum_ = larger(greatest_query_sum_, tile.bias.query_sums[i] * log2_e_double);
  }

  bool exist() const {
    switch (tile_.bias.kind) {
      case BiasKind::one_sided: return left_.decreases();
      case BiasKind::two_sided: return left_.decreases() && right_.decreases();
      case BiasKind::table:
      case BiasKind::sums: return tile_.skipping.behind != nullptr;
      default: return false;
    }
  }

  double each(std::int64_t b) const {
    if (tile_.bias.kind == BiasKind::sums)
      return greatest_query_sum_ + tile_.skipping.behind[b].each;
    const double behind = nearest_behind(b), ahead = nearest_ahead(b);
    if (tile_.bias.kind == BiasKind::table)
      return smaller(at_distance(tile_.skipping.behind, behind, farthest_behind(b)).each,
                     at_distance(tile_.skipping.ahead, -ahead, -farthest_ahead(b)).each);
    return behind > 0.0 ? left_.from(behind) : ahead > 0.0 ? right_.from(ahead) : 0.0;
  }

  double back_from(std::int64_t b) const {
    if (tile_.bias.kind == BiasKind::sums)
      return greatest_query_sum_ + tile_.skipping.behind[b].sum;
    if (!tile_.keys.positions_rise) return __builtin_inf();
    const double nearest = nearest_behind(b);
    const double keys = static_cast<double>((b + 1) * keys_per_block);
    if (tile_.bias.kind == BiasKind::table) {
      const BiasBound bound = at_distance(tile_.skipping.behind, nearest, farthest_behind(0));
      return smaller(bound.sum, bound.each + __builtin_log2(keys));
    }
    return nearest > 0.0 ? left_.sum_from(nearest, keys) : __builtin_inf();
  }

  double ahead_from(std::int64_t b) const {
    if (tile_.bias.kind == BiasKind::sums) return greatest_query_sum_ + tile_.skipping.ahead[b].sum;
    if (!tile_.keys.positions_rise) return __builtin_inf();
    const double nearest = nearest_ahead(b);
    const double keys = static_cast<double>(tile_.keys.count - b * keys_per_block);
    if (tile_.bias.kind == BiasKind::table) {
      const double farthest = farthest_ahead(block_count(tile_.keys) - 1);
      const BiasBound bound = at_distance(tile_.skipping.ahead, -nearest, -farthest);
      return smaller(bound.sum, bound.each + __builtin_log2(keys));
    }
    return nearest > 0.0 ? right_.sum_from(nearest, keys) : __builtin_inf();
  }

 private:
  // The keys behind or ahead: a lower bound of the slope, and the geometric series
  // sum_t 2^(-slope t) = 1 / ratio.
  struct Side {
    explicit Side(double rounded) : slope(rounded / rounding_slack) {
      ratio = 1.0 - __builtin_exp2(-slope);
      log_sum = -__builtin_log2(ratio);
    }
    // Whether no key has a greater bias than a nearer one.
    bool decreases() const { return slope >= 0.0; }
    // Bounds the bias at all distances >= nearest.
    double from(double nearest) const { return -slope * nearest; }
    // Bounds the sum over at most `keys` keys at different distances, all >= nearest.
    double sum_from(double nearest, double keys) const {
      return from(nearest) + (ratio * keys > 1.0 ? log_sum : __builtin_log2(keys));
    }
    double slope, ratio, log_sum;
  };

  double nearest_behind(std::int64_t b) const {
    return least_origin_ - block_of(tile_.keys, b).greatest_position;
  }
  double farthest_behind(std::int64_t b) const {
    return greatest_origin_ - block_of(tile_.keys, b).least_position;
  }
  double nearest_ahead(std::int64_t b) const {
    return block_of(tile_.keys, b).least_position - greatest_origin_;
  }
  double farthest_ahead(std::int64_t b) const {
    return block_of(tile_.keys, b).greatest_position - least_origin_;
  }

  // Bounds for the distances from `nearest` to `farthest`. Outside the table the bias is 0, and
  // only `each` is bounded.
  BiasBound at_distance(const BiasBound* bounds, double nearest, double farthest) const {
    const double first = static_cast<double>(tile_.bias.table_begin);
    const double end = first + static_cast<double>(tile_.bias.table_size);
    const bool inside = nearest >= first && nearest < end && farthest >= first && farthest < end;
    if (inside) return bounds[static_cast<std::int64_t>(nearest - first)];
    const bool rising = bounds == tile_.skipping.behind;
    const double most = tile_.bias.table_size == 0 ? 0.0
                        : nearest >= first && nearest < end
                            ? bounds[static_cast<std::int64_t>(nearest - first)].each
                            : bounds[rising ? 0 : tile_.bias.table_size - 1].each;
    return {larger(0.0, most), __builtin_inf()};
  }

  const AttentionTile& tile_;
  const Side left_, right_;
  double least_origin_, greatest_origin_;
  double greatest_query_sum_ = -__builtin_inf();
};

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

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

// The least slopes of a tile, log2 domain, up to the knees and beyond, and the least knee. Without
// a knee both slopes of a side are the same.
struct LeastSlopes {
  double left = __builtin_inf();
  double right = __builtin_inf();
  double far_left = __builtin_inf();
  double far_right = __builtin_inf();
  double knee = __builtin_inf();
};

inline LeastSlopes least_slopes(const AttentionTile& tile) {
  const TileBias& bias = tile.bias;
  const bool bent = bias.knees != nullptr;
  LeastSlopes least;
  for (int i = 0; bias.left_slopes != nullptr && i < tile.query_count; ++i) {
    const float left = bias.left_slopes[i], right = bias.right_slopes[i];
    least.left = smaller(least.left, left * log2_e);
    least.right = smaller(least.right, right * log2_e);
    least.far_left = smaller(least.far_left, (bent ? bias.far_left_slopes[i] : left) * log2_e);
    least.far_right = smaller(least.far_right, (bent ? bias.far_right_slopes[i] : right) * log2_e);
    if (bent) least.knee = smaller(least.knee, bias.knees[i]);
  }
  return least;
}

// Bounds that hold for every query of a tile; infinity where there is no proof.
// benchmarks/results/skipping.md derives them.
//   each(b)        the bias of any key of block b
//   back_from(b)   log2 sum_j 2^bias_ij over the keys of block b and the blocks before it
//   ahead_from(b)  log2 sum_j 2^bias_ij over the keys of block b and the blocks after it
class BiasBounds {
 public:
  explicit BiasBounds(const AttentionTile& tile) : BiasBounds(tile, least_slopes(tile)) {}

  BiasBounds(const AttentionTile& tile, const LeastSlopes& slopes)
      : tile_(tile),
        left_(slopes.left, slopes.far_left, slopes.knee, tile.bias.query_knee),
        right_(slopes.right, slopes.far_right, slopes.knee, tile.bias.query_knee) {
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
      case BiasKind::one_sided:
      case BiasKind::one_sided_knee: return left_.decreases();
      case BiasKind::two_sided:
      case BiasKind::two_sided_knee: return left_.decreases() && right_.decreases();
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
  // A lower bound of a slope, and the geometric series sum_t 2^(-slope t) = 1 / ratio.
  struct Piece {
    explicit Piece(double rounded) : slope(rounded / rounding_slack) {
      ratio = 1.0 - __builtin_exp2(-slope);
      log_sum = -__builtin_log2(ratio);
    }
    // Bounds log2 of the sum of the first `terms` terms.
    double sum_of(double terms) const {
      return ratio * terms > 1.0 ? log_sum : __builtin_log2(terms);
    }
    double slope, ratio, log_sum;
  };

  // The keys behind or ahead: one piece up to the knee, another beyond.
  struct Side {
    Side(double slope, double far_slope, double least_knee, double greatest_knee)
        : near(slope), far(far_slope), knee(near.slope >= far.slope ? least_knee : greatest_knee) {}
    // Whether no key has a greater bias than a nearer one.
    bool decreases() const { return near.slope >= 0.0 && far.slope >= 0.0; }
    // Bounds the bias at all distances >= nearest.
    double from(double nearest) const {
      const double before = smaller(nearest, knee);
      return -near.slope * before - far.slope * (nearest - before);
    }
    // Bounds the sum over at most `keys` keys at different distances, all >= nearest.
    double sum_from(double nearest, double keys) const {
      const double before = larger(knee - nearest, 0.0);
      if (before >= keys) return from(nearest) + near.sum_of(keys);
      const double beyond = from(nearest + before) + far.sum_of(keys - before);
      if (before == 0.0) return beyond;
      const double up_to = from(nearest) + near.sum_of(before);
      return up_to > beyond ? up_to + added(up_to - beyond) : beyond + added(beyond - up_to);
    }
    // Bounds log2(1 + 2^-x) for x >= 0 without the exponential, which every block would need.
    static double added(double x) {
      const double nats = x / log2_e_double;
      return smaller(1.0, log2_e_double / (1.0 + nats + 0.5 * nats * nats));
    }
    const Piece near, far;
    const double knee;
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

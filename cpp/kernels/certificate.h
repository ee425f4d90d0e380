// Which blocks of keys a tile sees, and which it may leave out.
#pragma once

#include "kernels/attention_scratch.h"
#include "kernels/key_list.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

// Which keys the tile sees as a whole, from the extremes over its queries.
struct TileReach {
  std::int64_t first_seen_by_any, last_seen_by_any;
  std::int64_t first_seen_by_all, last_seen_by_all;
  std::int64_t least_query, greatest_query;

  explicit TileReach(const AttentionTile& tile) {
    least_query = greatest_query = tile.query_positions[0];
    for (int i = 0; i < tile.query_count; ++i) {
      const std::int64_t position = tile.query_positions[i];
      if (position < least_query) least_query = position;
      if (position > greatest_query) greatest_query = position;
      const std::int64_t first = position - tile.mask.greatest_distances[i];
      const std::int64_t last = position - tile.mask.least_distances[i];
      if (i == 0) {
        first_seen_by_any = first_seen_by_all = first;
        last_seen_by_any = last_seen_by_all = last;
      }
      if (first < first_seen_by_any) first_seen_by_any = first;
      if (first > first_seen_by_all) first_seen_by_all = first;
      if (last > last_seen_by_any) last_seen_by_any = last;
      if (last < last_seen_by_all) last_seen_by_all = last;
    }
  }

  bool sees(const KeyBlock& block, std::int32_t sink_end) const {
    if (block.least_position > last_seen_by_any) return false;
    return block.greatest_position >= first_seen_by_any || block.least_position < sink_end;
  }
  // Whether no block up to b, or from b on, is seen.
  bool ends_before(const AttentionTile& tile, std::int64_t b) const {
    const bool none = block_of(tile.keys, b).greatest_position < first_seen_by_any;
    return none && tile.keys.positions_rise &&
           block_of(tile.keys, 0).least_position >= tile.mask.sink_end;
  }
  bool ends_behind(const AttentionTile& tile, std::int64_t b) const {
    return tile.keys.positions_rise && block_of(tile.keys, b).least_position > last_seen_by_any;
  }
  // How many keys of the block that begins at `begin`: those behind the last one seen are left out.
  int keys_to_read(const AttentionTile& tile, std::int64_t begin) const {
    int count = keys_in_block(tile.keys, begin / keys_per_block);
    if (tile.keys.positions_rise)
      while (count > 1 && position_of(tile.keys, begin + count - 1) > last_seen_by_any) --count;
    return count;
  }
  bool sees_all_of(const KeyBlock& block) const {
    return block.least_position >= first_seen_by_all && block.greatest_position <= last_seen_by_all;
  }
};

// Not fmin, which g++ 12 for aarch64 fails to vectorise with an internal error.
inline double smaller(double a, double b) { return b < a ? b : a; }

// What bounds the scores of all queries of a tile, log2 domain.
struct TileBounds {
  double query_norm = 0.0;  // the greatest, with the scale in it
  double left_slope = __builtin_inf();
  double right_slope = __builtin_inf();
};

// docs/certified-skipping.md has the derivation.
//
// What is proven about keys not read, for linear biases whose slopes are >= 0. All logarithms are
// to the base 2 and in float64; a query's sum means sum_j 2^score_j.
class Certificate {
 public:
  Certificate(const AttentionTile& tile, const TileReach& reach, const TileBounds& bounds)
      : tile_(tile), reach_(reach) {
    const bool one_sided = tile.bias.kind == BiasKind::one_sided;
    possible_ = tile.skipping.norms != nullptr && tile.skipping.tolerance > 0.0 &&
                (one_sided || tile.bias.kind == BiasKind::two_sided) && bounds.left_slope >= 0.0 &&
                (one_sided || bounds.right_slope >= 0.0);
    // Norms and slopes are rounded.
    score_per_norm_ = bounds.query_norm * slack_factor;
    left_slope_ = bounds.left_slope / slack_factor;
    right_slope_ = bounds.right_slope / slack_factor;
    allowed_ = __builtin_log2(tile.skipping.tolerance / 3.0);
  }

  // Whether what all blocks from b back (ahead) hold may be left out.
  bool drops_back_from(std::int64_t b) const {
    if (!possible_ || !tile_.keys.positions_rise) return false;
    const double nearest = static_cast<double>(reach_.least_query) - block(b).greatest_position;
    const double keys = static_cast<double>((b + 1) * keys_per_block);
    return nearest > 0.0 &&
           mass(norms(b).up_to, left_slope_, nearest, keys) <= least_sum_ + allowed_;
  }
  bool drops_ahead_from(std::int64_t b) const {
    if (!possible_ || !tile_.keys.positions_rise) return false;
    const double nearest = block(b).least_position - static_cast<double>(reach_.greatest_query);
    const double keys = static_cast<double>(tile_.keys.count - b * keys_per_block);
    return nearest > 0.0 &&
           mass(norms(b).from, right_slope_, nearest, keys) <= least_sum_ + allowed_;
  }

  // Whether block b may be left out, and if so that it is. What was left out before counts.
  bool drops(std::int64_t b) {
    if (!possible_ || least_sum_ == -infinity) return false;
    const double behind = static_cast<double>(reach_.least_query) - block(b).greatest_position;
    const double ahead = block(b).least_position - static_cast<double>(reach_.greatest_query);
    const double slope = behind > 0.0 ? left_slope_ : ahead > 0.0 ? right_slope_ : 0.0;
    const double nearest = behind > 0.0 ? behind : ahead > 0.0 ? ahead : 0.0;
    const double log_mass = score_per_norm_ * norms(b).own - slope * nearest + log_keys_per_block;
    const double share = __builtin_exp2(log_mass - least_sum_);
    if (!(dropped_ + dropped_scored_ + share <= __builtin_exp2(allowed_))) return false;
    dropped_ += share;
    return true;
  }

  bool possible() const { return possible_; }

  // Whether a block whose scores are known may be left out, and if so that it is. `excess` is the
  // most that the logarithm of one weight is above that of its query's sum.
  bool drops_scored(double excess) {
    if (!possible_) return false;
    const double share = __builtin_exp2(excess + 2.0 * score_error() + log_keys_per_block);
    if (!(dropped_ + dropped_scored_ + share <= __builtin_exp2(allowed_))) return false;
    dropped_scored_ += share;
    return true;
  }

  // Starts from what is summed elsewhere: a logarithm that least_log_sum of another part gave.
  void begin_with(double log_sum) { least_sum_ = log_sum; }
  double least_log_sum() const { return least_sum_; }

  // After a block was read: the least sum over the queries as the kernel has it, from below.
  void update(double minimum) {
    if (!possible_) return;
    const double before = least_sum_;
    least_sum_ = minimum - score_error() - 8.0 * unit_roundoff * __builtin_fabs(minimum);
    // Shares were taken of the sum then.
    if (dropped_ > 0.0) dropped_ *= __builtin_exp2(before - least_sum_);
  }

 private:
  static constexpr double slack_factor = 1.0 + 1e-5;
  static constexpr double unit_roundoff = 1.0 / (1 << 24);
  static constexpr double log_keys_per_block = 6.0;
  static_assert(keys_per_block == 64, "its logarithm is written out");

  // Scores are float32: |error| <= (D + 8) u A + 4 u (A + |score|), A = scale |q| |k|. This is
  // twice that but for |score|.
  double score_error() const {
    const double reachable = score_per_norm_ * norms(block_count(tile_.keys) - 1).up_to;
    return unit_roundoff * (tile_.head_dim + 24.0) * reachable + 1e-5;
  }

  KeyBlock block(std::int64_t b) const { return block_of(tile_.keys, b); }
  const BlockNorms& norms(std::int64_t b) const { return tile_.skipping.norms[b]; }

  // Logarithm of a bound on the mass of `keys` keys of norms up to `norm` at distances >= nearest,
  // no two at the same: a geometric sum.
  double mass(double norm, double slope, double nearest, double keys) const {
    const double ratio = 1.0 - __builtin_exp2(-slope);
    const double sum = ratio * keys > 1.0 ? 1.0 / ratio : keys;
    return score_per_norm_ * norm - slope * nearest + __builtin_log2(sum);
  }

  const AttentionTile& tile_;
  const TileReach& reach_;
  bool possible_;
  double left_slope_ = 0.0, right_slope_ = 0.0;  // the least of the tile, log2 domain
  double score_per_norm_ = 0.0;  // the greatest norm of a query, which has the scale in it
  double allowed_ = 0.0;         // a third of the tolerance each: back, ahead, single blocks
  double least_sum_ = -__builtin_inf();
  double dropped_ = 0.0;         // single blocks, as a share of the least sum
  double dropped_scored_ = 0.0;  // single blocks, at most this share of any query's sum
};

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

// Which blocks of keys a tile may leave out.
#pragma once

#include "kernels/bias_bounds.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

// docs/certified-skipping.md has the derivation.
//
// What is proven about keys not read. All logarithms are to the base 2 and in float64; a query's
// sum means sum_j 2^score_j.
class Certificate {
 public:
  // query_norm: the greatest of the tile, with the scale in it.
  Certificate(const AttentionTile& tile, const TileReach& reach, double query_norm,
              const LeastSlopes& slopes)
      : tile_(tile), bias_(tile, reach, slopes) {
    possible_ = tile.skipping.norms != nullptr && tile.skipping.tolerance > 0.0 && bias_.exist();
    score_per_norm_ = query_norm * (1.0 + 1e-5);  // norms are rounded
    allowed_share_ = tile.skipping.tolerance / 3.0;
    allowed_ = __builtin_log2(allowed_share_);
  }

  // Whether what all blocks from b back (ahead) hold may be left out.
  bool drops_back_from(std::int64_t b) const {
    return possible_ && least_sum_ > -infinity &&
           score_per_norm_ * norms(b).up_to + bias_.back_from(b) <= least_sum_ + allowed_;
  }
  bool drops_ahead_from(std::int64_t b) const {
    return possible_ && least_sum_ > -infinity &&
           score_per_norm_ * norms(b).from + bias_.ahead_from(b) <= least_sum_ + allowed_;
  }

  // Whether block b may be left out, and if so that it is. What was left out before counts.
  bool drops(std::int64_t b) {
    if (!possible_ || !(least_sum_ > -infinity)) return false;
    const double log_mass = score_per_norm_ * norms(b).own + bias_.each(b) + log_keys_per_block;
    const double share = __builtin_exp2(log_mass - least_sum_);
    if (!(dropped_ + dropped_scored_ + share <= allowed_share_)) return false;
    dropped_ += share;
    return true;
  }

  bool possible() const { return possible_; }

  // Whether a block whose scores are known may be left out, and if so that it is. `excess` is the
  // most that the logarithm of one weight is above that of its query's sum.
  bool drops_scored(double excess) {
    if (!possible_) return false;
    const double share = __builtin_exp2(excess + 2.0 * score_error() + log_keys_per_block);
    if (!(dropped_ + dropped_scored_ + share <= allowed_share_)) return false;
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
  static constexpr double unit_roundoff = 1.0 / (1 << 24);
  static constexpr double log_keys_per_block = 6.0;
  static_assert(keys_per_block == 64, "its logarithm is written out");

  // Scores are float32: |error| <= (D + 8) u A + 4 u (A + |score|), A = scale |q| |k|. This is
  // twice that but for |score|.
  double score_error() const {
    const double reachable = score_per_norm_ * norms(block_count(tile_.keys) - 1).up_to;
    return unit_roundoff * (tile_.head_dim + 24.0) * reachable + 1e-5;
  }

  const BlockNorms& norms(std::int64_t b) const { return tile_.skipping.norms[b]; }

  const AttentionTile& tile_;
  const BiasBounds bias_;
  bool possible_;
  double score_per_norm_ = 0.0;  // the greatest norm of a query, which has the scale in it
  double allowed_share_ = 0.0;   // a third of the tolerance each: back, ahead, single blocks
  double allowed_ = 0.0;         // its logarithm
  double least_sum_ = -__builtin_inf();
  double dropped_ = 0.0;         // single blocks, as a share of the least sum
  double dropped_scored_ = 0.0;  // single blocks, at most this share of any query's sum
};

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

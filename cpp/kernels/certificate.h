// The proof that a tile may skip a block of keys. The derivation is in
// benchmarks/results/skipping.md.
#pragma once

#include "kernels/bias_bounds.h"
#include "kernels/elements.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

// The log2 of the sum over other keys, in the units of the tile's scores.
inline double known_log_sum(const AttentionTile& tile, int query) {
  return (tile.skipping.known_logsumexps[query] - tile.bias.shifts[query]) * log2_e_double;
}

// Bounds from scores and log sums that a kernel computed, for one query (Number is double) or for a
// vector of queries.

// A lower bound of a log sum less the score of the centre.
template <class Number>
Number least_from_centre(Number log_sum, Number centre_score) {
  const Number error = (magnitude(log_sum) + magnitude(centre_score)) * relative_score_error;
  return log_sum - centre_score - error;
}

// An upper bound of a score less a log sum. No score exceeds a sum of infinity, and a score of
// -infinity, as masked keys have, exceeds none.
template <class Number>
Number greatest_excess(Number score, Number log_sum) {
  const Number error = (magnitude(score) + magnitude(log_sum)) * relative_score_error;
  const Number excess = log_sum == infinity ? -log_sum : score - log_sum + error;
  return score == -infinity ? score : excess;
}

// Keeps account of the keys that a tile has skipped. All logarithms are to the base 2 and in
// float64. A query's sum is sum_j 2^score_j, where scores are measured from the score of the centre
// c: scale q.(k_j - c) + bias. The weights are the same.
class Certificate {
 public:
  // query_norm: the greatest norm of the tile's queries, times the scale.
  Certificate(const AttentionTile& tile, double query_norm) : tile_(tile), bias_(tile) {
    possible_ = tile.skipping.norms != nullptr && tile.skipping.max_dropped_share > 0.0 &&
                tile.keys.count > 0 && bias_.exist();
    score_per_norm_ = query_norm * rounding_slack;
    if (possible_) {
      const float* centre = tile.skipping.centre;
      centre_norm_ = __builtin_sqrt(dot(centre, centre, tile.head_dim)) + underflowed_norm;
    }
    allowed_share_ = tile.skipping.max_dropped_share / ways_to_drop;
    allowed_ = __builtin_log2(allowed_share_);
  }

  // True if block b and all blocks before (after) it may be skipped.
  bool drops_back_from(std::int64_t b) const {
    return possible_ && least_sum_ > -infinity &&
           score_per_norm_ * norms(b).up_to + bias_.back_from(b) <= least_sum_ + allowed_;
  }
  bool drops_ahead_from(std::int64_t b) const {
    return possible_ && least_sum_ > -infinity &&
           score_per_norm_ * norms(b).from + bias_.ahead_from(b) <= least_sum_ + allowed_;
  }

  // Drops block b if it may be skipped in addition to the single blocks dropped before.
  bool try_drop(std::int64_t b) {
    if (!possible_ || !(least_sum_ > -infinity)) return false;
    const double log_mass =
        score_per_norm_ * norms(b).of_block + bias_.each(b) + log2_keys_per_block;
    const double share = __builtin_exp2(log_mass - least_sum_);
    if (!(dropped_ + dropped_scored_ + share <= allowed_share_)) return false;
    dropped_ += share;
    return true;
  }

  bool possible() const { return possible_; }

  // Drops a block whose scores are known if it may be skipped. `excess` bounds the logarithm of any
  // weight of the block relative to its query's sum.
  bool try_drop_scored(double excess) {
    if (!possible_) return false;
    const double share = __builtin_exp2(excess + 2.0 * score_error() + log2_keys_per_block);
    if (!(dropped_ + dropped_scored_ + share <= allowed_share_)) return false;
    dropped_scored_ += share;
    return true;
  }

  // Starts from the sum of another part: its least_log_sum().
  void begin_with(double log_sum) { least_sum_ = log_sum; }
  double least_log_sum() const { return least_sum_; }

  // Takes the least log sum over the queries after a block was read, from the scores that the
  // kernel computed. The error relative to a log sum, or to the score of the centre, is subtracted.
  void update(double minimum) {
    if (!possible_) return;
    const double before = least_sum_;
    least_sum_ = minimum - score_error() - product_error(centre_norm_);
    // dropped_ is a share of the earlier sum.
    if (dropped_ > 0.0) dropped_ *= __builtin_exp2(before - least_sum_);
  }

 private:
  // All blocks back, all blocks ahead, single blocks: each may drop a third of the share.
  static constexpr double ways_to_drop = 3.0;

  // Scores are float32: |error| <= (head_dim + 8) u A + 4 u (A + |score|) with A = scale |q| |k|,
  // which the distance of k from the origin bounds, not that from the centre. This is the part
  // relative to A, and the error of the sum.
  double score_error() const {
    return product_error(norms(block_count(tile_.keys) - 1).up_to + centre_norm_) +
           exp2_and_sum_error;
  }
  // Bounds the error of the product of a query and a vector of this norm.
  double product_error(double norm) const {
    return unit_roundoff * (tile_.head_dim + extra_score_roundings) * score_per_norm_ * norm;
  }

  const BlockNorms& norms(std::int64_t b) const { return tile_.skipping.norms[b]; }

  const AttentionTile& tile_;
  const BiasBounds bias_;
  bool possible_;
  double score_per_norm_ = 0.0;  // times the norm of k - c, a bound of the score without bias
  double centre_norm_ = 0.0;
  double allowed_share_ = 0.0;  // for each of the ways to drop
  double allowed_ = 0.0;        // log2 of allowed_share_
  double least_sum_ = -__builtin_inf();
  double dropped_ = 0.0;         // single blocks, as a share of the least sum
  double dropped_scored_ = 0.0;  // single blocks, as a bound of their share of any query's sum
};

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

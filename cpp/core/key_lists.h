// The keys of each batch row without padding, and their positions.
#pragma once

#include <cstdint>
#include <vector>

#include "core/attention.h"

namespace ntk_alibi {

// Whether the words of a query show key c of a list.
inline bool has_bit(const std::uint64_t* words, std::int64_t c) {
  return (words[c / keys_per_block] >> c % keys_per_block & 1) != 0;
}

// The keys of one batch row.
class OwnedKeyList {
 public:
  OwnedKeyList(const AttentionProblem& problem, std::int64_t b);

  KeyList view() const;

  // The distance from a query to the nearest key that it sees if all of these are on one side of
  // it, negative if they are ahead; else 0. Distances up to `negligible` may count as 0.
  std::int64_t one_sided_distance(std::int32_t query, const VisibleInterval& visible,
                                  std::int64_t negligible) const;

  // The same among the keys whose bits are set in the words of the query.
  std::int64_t one_sided_distance(std::int32_t query, const VisibleInterval& visible,
                                  std::int64_t negligible, const std::uint64_t* words) const;

  bool is_any_visible(std::int32_t query, const VisibleInterval& visible) const;

 private:
  void sort_positions();
  const std::vector<std::int32_t>& sorted() const { return rise_ ? positions_ : sorted_; }
  std::int64_t greatest_up_to(std::int64_t position) const;
  std::int64_t least_from(std::int64_t position) const;

  std::vector<std::int32_t> indices_, positions_;
  std::vector<std::int32_t> sorted_;  // positions_, unless they rise
  std::vector<KeyBlock> blocks_;
  std::int64_t count_;
  bool consecutive_, rise_;
  // The extremes of the positions, and the greatest distance between neighbours.
  std::int64_t least_ = 0, greatest_ = -1, gap_ = 1;
};

// The keys of all batch rows, which may share one list.
class KeyLists {
 public:
  explicit KeyLists(const AttentionProblem& problem);

  bool shared() const { return lists_.size() <= 1; }
  const OwnedKeyList& of_row(std::int64_t b) const { return lists_[lists_.size() > 1 ? b : 0]; }

 private:
  std::vector<OwnedKeyList> lists_;
};

// The kernels have a block_count of their own: inline functions must not cross between ISAs.
inline std::int64_t block_count(std::int64_t keys) {
  return (keys + keys_per_block - 1) / keys_per_block;
}

}  // namespace ntk_alibi

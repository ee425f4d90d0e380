// The keys of each batch row without padding, and their positions.
#pragma once

#include <cstdint>
#include <vector>

#include "core/attention.h"

namespace ntk_alibi {

// The keys of one batch row.
class OwnedKeyList {
 public:
  OwnedKeyList(const AttentionProblem& problem, std::int64_t b);

  KeyList view() const;

 private:
  std::vector<std::int32_t> indices_, positions_;
  std::vector<KeyBlock> blocks_;
  std::int64_t count_;
  bool consecutive_, rise_;
};

// The keys of all batch rows, which may share one list.
class KeyLists {
 public:
  explicit KeyLists(const AttentionProblem& problem);

  const OwnedKeyList& of_row(std::int64_t b) const { return lists_[lists_.size() > 1 ? b : 0]; }

 private:
  std::vector<OwnedKeyList> lists_;
};

// The kernels have a block_count of their own: inline functions must not cross between ISAs.
inline std::int64_t block_count(std::int64_t keys) {
  return (keys + keys_per_block - 1) / keys_per_block;
}

}  // namespace ntk_alibi

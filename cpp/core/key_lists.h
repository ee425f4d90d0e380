// The real keys of each batch row and where they stand.
#pragma once

#include <cstdint>
#include <vector>

#include "core/attention.h"

namespace ntk_alibi {

// Of one batch row.
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

// One for each batch row, or one for all.
std::vector<OwnedKeyList> key_lists(const AttentionProblem& problem);

inline std::int64_t block_count(std::int64_t keys) {
  return (keys + keys_per_block - 1) / keys_per_block;
}

}  // namespace ntk_alibi

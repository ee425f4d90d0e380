// What depends on positions, padding and mask alone, and is the same in all layers of a model.
#pragma once

#include <cstdint>
#include <vector>

#include "core/attention.h"
#include "core/key_lists.h"

namespace ntk_alibi {

// One value of each query of a batch row, the same for all heads: its position and what it sees.
struct QueryRows {
  const std::int32_t *positions, *least_distances, *greatest_distances, *sink_ends;

  VisibleInterval interval(std::int64_t r) const {
    return {least_distances[r], greatest_distances[r], sink_ends[r]};
  }
};

// The real keys and the queries of a problem. It copies what it reads and never changes, so that
// calls and threads may share it.
class Visibility {
 public:
  explicit Visibility(const AttentionProblem& problem);

  const KeyLists& keys() const { return keys_; }

  // The queries of batch row b from `first` on.
  QueryRows queries(std::int64_t b, std::int64_t first) const;

 private:
  const KeyLists keys_;
  const std::int64_t query_length_;
  const bool rows_differ_;
  std::vector<std::int32_t> query_rows_;  // (rows, 4, queries), the fields of QueryRows
};

}  // namespace ntk_alibi

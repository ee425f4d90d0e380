// Packed segments: several of them share a row of tokens, and each is a problem by itself.
#pragma once

#include <cstdint>
#include <vector>

#include "core/attention.h"
#include "core/attention_gradient.h"

namespace ntk_alibi {

struct Range {
  std::int64_t begin, end;

  std::int64_t size() const { return end - begin; }
};

// One segment, in the same columns of some batch rows.
struct Segment {
  Range rows, queries, keys;
};

// Attention of the queries of each segment over its keys, as if there were no other segment.
// Positions come from the packed problem, or are the columns of the segment. A query may be in one
// segment only.
void attention_of_segments(const AttentionProblem& packed, std::vector<Segment> segments);

// The same for gradients. Gradients of keys that are in no segment are not written.
void attention_gradients_of_segments(const AttentionProblem& packed,
                                     const AttentionGradients& gradients,
                                     std::vector<Segment> segments);

}  // namespace ntk_alibi

// Packed texts: several texts in one row of tokens, each a problem of its own.
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

// One text, in the same columns of some batch rows.
struct Text {
  Range rows, queries, keys;
};

// Attention of the queries of each text over its keys, as if there were no other text. Positions
// come from the packed problem, or are the columns of the text. A query may be in one text only.
void attention_of_texts(const AttentionProblem& packed, std::vector<Text> texts);

// The same for gradients. Gradients of keys that are in no text are not written.
void attention_gradients_of_texts(const AttentionProblem& packed,
                                  const AttentionGradients& gradients, std::vector<Text> texts);

}  // namespace ntk_alibi

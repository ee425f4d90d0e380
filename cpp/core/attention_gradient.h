// Gradients of attention over whole tensors.
#pragma once

#include "core/attention.h"

namespace ntk_alibi {

// What comes in, and where results go. `output` and `logsumexp` of the problem hold those of the
// forward pass. Where a tensor is written only for real keys or for pairs that were read, the rest
// is left as it is.
struct AttentionGradients {
  TensorView output_gradient;       // as output
  const float* logsumexp_gradient;  // (batch, heads, queries), contiguous, or null
  TensorView query, key, value;     // dtypes as the inputs'; key and value for real keys
  // Of the bias, each null if not asked for; contiguous.
  float* left_slopes;   // (batch, heads, queries)
  float* right_slopes;  // (batch, heads, queries)
  double* table;        // (heads, distances), added to
  double* sums;         // (batch, heads, keys), added to
  float* dense;         // (batch, heads, queries, keys), for pairs that were read
};

// The same bits from run to run and for any number of threads.
void attention_gradients(const AttentionProblem& problem, const AttentionGradients& gradients);

}  // namespace ntk_alibi

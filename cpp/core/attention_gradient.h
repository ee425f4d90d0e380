// Gradients of attention over whole tensors.
#pragma once

#include "core/attention.h"

namespace ntk_alibi {

// The incoming gradients and the destinations of the results. The problem's output and logsumexp
// hold the results of the forward pass. Rows of padded keys, and dense elements of pairs that were
// skipped, are not written.
struct AttentionGradients {
  TensorView output_gradient;       // shape and dtype of output
  const float* logsumexp_gradient;  // (batch, heads, queries), or null
  TensorView query, key, value;     // shapes and dtypes of the inputs
  // Gradients of the bias, whose rows are as far apart as the problem's; null pointers are
  // skipped.
  float* slopes[slope_sides];  // (batch, heads, queries) each: left, right
  double* table;               // (heads, distances), added to
  double* sums;                // (batch, heads, keys), added to
  float* dense;                // (batch, heads, queries, keys)
};

// Results have the same bits in every run and for any number of threads.
void attention_gradients(const AttentionProblem& problem, const AttentionGradients& gradients);

}  // namespace ntk_alibi

// Joins results of attention over disjoint keys, on all threads.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor_view.h"
#include "kernels/kernels.h"

namespace ntk_alibi {

struct MergeShape {
  std::int64_t batch, heads, queries, head_dim;
};

// output and logsumexp (batch, heads, queries), contiguous, may be a part's. Sums are
// float64, and are rounded once.
void merge(const MergeShape& shape, DType dtype, const std::vector<TensorView>& outputs,
           const std::vector<const double*>& logsumexps, const TensorView& output,
           double* logsumexp);

}  // namespace ntk_alibi

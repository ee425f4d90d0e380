// Bounds of keys and biases, from which the kernels prove that blocks of keys may be skipped.
// benchmarks/results/skipping.md has the proof.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/key_lists.h"
#include "core/table_bounds.h"

namespace ntk_alibi {

// The bounds of a problem. There are none if it allows no skipping, or if its bias proves nothing.
class SkipBounds {
 public:
  SkipBounds(const AttentionProblem& problem, const KeyLists& lists);

  // The bounds for the tiles of a head of queries in batch row b.
  Skipping of_head(std::int64_t b, std::int64_t h) const;

 private:
  void measure_norms(const KeyLists& lists);
  void bound_table();
  void bound_sums(const KeyLists& lists);

  const AttentionProblem& problem_;
  std::int64_t blocks_;  // the stride of rows of blocks
  // (batch, key heads, blocks) and (batch, key heads, head_dim), empty if the caller has them
  std::vector<BlockNorms> norms_;
  std::vector<float> centres_;
  const BlockNorms* key_norms_ = nullptr;
  const float* key_centres_ = nullptr;
  std::int64_t key_norms_stride_ = 0;
  std::shared_ptr<const TableBounds> table_bounds_;
  std::vector<BiasBound> behind_, ahead_;  // of sums, (batch, heads, blocks)
};

struct KeyNormsShape {
  std::int64_t batch, key_heads, key_length, head_dim;
};

// Fills norms (batch, key heads, blocks), with norms_stride from head to head, and the centres
// (batch, key heads, head_dim) that they are measured from. Norms of the first `known` keys
// are there already, and change only if there were too few for a centre. `from` is infinite: later
// keys are not known yet.
void measure_key_norms(const KeyNormsShape& shape, const TensorView& key, const ScaleView& scales,
                       DType dtype, std::int64_t known, BlockNorms* norms,
                       std::int64_t norms_stride, float* centres);

}  // namespace ntk_alibi

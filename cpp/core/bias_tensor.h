// Dense bias tensors, filled row by row on all threads.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"
#include "kernels/kernels.h"

namespace ntk_alibi {

enum class Anchor { first, last };

struct KeyBiasShape {
  std::int64_t batch;
  std::int64_t heads;
  std::int64_t key_length;
};

// out (batch, heads, keys), contiguous: slope * position for real keys, 0 for padding. Positions
// count the real keys (mask != 0) of a row from 0 (Anchor::first) or up to 0 at the last one
// (Anchor::last).
void key_bias(const KeyBiasShape& shape, const std::uint8_t* mask, const QueryView& slopes,
              Anchor anchor, DType dtype, void* out);

struct RelativeBiasShape {
  std::int64_t batch;
  std::int64_t heads;
  std::int64_t query_length;
  std::int64_t key_length;
};

// out (batch, heads, queries, keys), contiguous: the linear bias over distance of kernels.h. The
// last query is at the last key.
void relative_bias(const RelativeBiasShape& shape, const QueryView& left, const QueryView& right,
                   DType dtype, void* out);

}  // namespace ntk_alibi

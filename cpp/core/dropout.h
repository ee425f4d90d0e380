// Dropout of whole tensors.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace ntk_alibi {

// The dropout of a tile, from the problem's dropout and the tile's first query.
inline Dropout moved(Dropout dropout, std::int64_t row, std::int64_t head, std::int64_t query) {
  dropout.row += static_cast<std::uint32_t>(row);
  dropout.head += static_cast<std::uint32_t>(head);
  dropout.first_query += static_cast<std::uint32_t>(query);
  return dropout;
}

struct DropoutShape {
  std::int64_t batch;
  std::int64_t heads;
  std::int64_t query_length;
  std::int64_t key_length;
};

// out (batch, heads, queries, keys), contiguous: a number of 16 bits for each pair. The offsets of
// `dropout` belong to the first row, head, query and key.
void random_numbers(const DropoutShape& shape, const Dropout& dropout, std::uint16_t* out);

}  // namespace ntk_alibi

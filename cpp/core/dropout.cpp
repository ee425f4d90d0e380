#include "core/dropout.h"

#include <algorithm>
#include <vector>

#include "core/isa.h"
#include "core/parallel.h"

namespace ntk_alibi {

void random_numbers(const DropoutShape& shape, const Dropout& dropout, std::uint16_t* out) {
  const KernelTable& kernels = active_kernels();
  const std::int64_t size = kernels.queries_per_vector;
  const std::int64_t per_head = (shape.query_length + size - 1) / size;
  parallel_for_each(shape.batch * shape.heads * per_head, 1, [&](std::int64_t number) {
    const std::int64_t row = number / per_head, first = number % per_head * size;
    const Dropout of_tile = moved(dropout, row / shape.heads, row % shape.heads, first);
    std::vector<std::uint16_t> drawn(size * shape.key_length);
    kernels.random_numbers(of_tile, shape.key_length, shape.key_length, drawn.data());
    const std::int64_t count = std::min(size, shape.query_length - first) * shape.key_length;
    std::copy_n(drawn.data(), count, out + (row * shape.query_length + first) * shape.key_length);
  });
}

}  // namespace ntk_alibi

#include "core/bias_tensor.h"

#include <algorithm>
#include <vector>

#include "core/isa.h"
#include "core/parallel.h"

namespace ntk_alibi {
namespace {

// A larger tensor does not fit the last-level cache of usual machines, and stores that bypass the
// caches save reading each line before it is overwritten. A smaller one is better left in the cache
// for its reader (28 MiB on a Zen 4 with 32 MiB of cache: 1.2 ms streamed, 0.7 ms not).
constexpr std::int64_t stream_above_bytes = std::int64_t{64} << 20;

// A thread gets at least this many elements, so that waking it pays.
constexpr std::int64_t elements_per_task = std::int64_t{1} << 15;

// Kernels read positions for whole vectors of 16-bit results, which have at most 32 elements.
constexpr std::int64_t vector_slack = 32;

void count_positions(const std::uint8_t* mask, std::int64_t key_length, Anchor anchor,
                     std::int32_t* positions) {
  std::int32_t last = -1;
  for (std::int64_t k = 0; k < key_length; ++k) {
    last += mask[k] != 0;
    positions[k] = mask[k] ? last : 0;
  }
  if (anchor == Anchor::first) return;
  for (std::int64_t k = 0; k < key_length; ++k) {
    if (mask[k]) positions[k] -= last;
  }
}

// Calls write(kernels, row, destination, stream) for every row of a contiguous tensor.
template <class Write>
void for_each_row(std::int64_t rows, std::int64_t row_length, DType dtype, void* out, Write write) {
  const std::int64_t row_bytes = row_length * element_size(dtype);
  if (rows == 0 || row_bytes == 0) return;
  const bool stream = rows * row_bytes > stream_above_bytes;
  const KernelTable& kernels = active_kernels();
  const std::int64_t rows_per_step = 1 + elements_per_task / row_length;
  parallel_for(rows, rows_per_step,
               [&](std::int64_t begin, std::int64_t end, Cancellation& cancellation) {
                 while (begin < end && !cancellation.requested())
                   for (const std::int64_t stop = std::min(end, begin + rows_per_step);
                        begin < stop; ++begin)
                     write(kernels, begin, static_cast<char*>(out) + begin * row_bytes, stream);
                 if (stream) kernels.stream_fence();
               });
}

}  // namespace

void key_bias(const KeyBiasShape& shape, const std::uint8_t* mask, const QueryView& slopes,
              Anchor anchor, DType dtype, void* out) {
  std::vector<std::int32_t> positions(shape.batch * shape.key_length + vector_slack);
  parallel_for_each(shape.batch, 1 + elements_per_task / (shape.key_length + 1),
                    [&](std::int64_t b) {
                      const std::int64_t row = b * shape.key_length;
                      count_positions(mask + row, shape.key_length, anchor, positions.data() + row);
                    });
  for_each_row(shape.batch * shape.heads, shape.key_length, dtype, out,
               [&](const KernelTable& kernels, std::int64_t row, void* destination, bool stream) {
                 const std::int64_t b = row / shape.heads, h = row % shape.heads;
                 kernels.scaled_positions(positions.data() + b * shape.key_length, shape.key_length,
                                          value_at(slopes, b, h, 0), dtype, stream, destination);
               });
}

void relative_bias(const RelativeBiasShape& shape, const QueryView& left, const QueryView& right,
                   DType dtype, void* out) {
  for_each_row(shape.batch * shape.heads * shape.query_length, shape.key_length, dtype, out,
               [&](const KernelTable& kernels, std::int64_t row, void* destination, bool stream) {
                 const std::int64_t q = row % shape.query_length;
                 const std::int64_t h = row / shape.query_length % shape.heads;
                 const std::int64_t b = row / shape.query_length / shape.heads;
                 kernels.linear_bias_row(
                     {value_at(left, b, h, q), value_at(right, b, h, q),
                      shape.key_length - shape.query_length + q, shape.key_length},
                     dtype, stream, destination);
               });
}

}  // namespace ntk_alibi

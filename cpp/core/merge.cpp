#include "core/merge.h"

#include "core/isa.h"
#include "core/parallel.h"

namespace ntk_alibi {
namespace {

// A thread gets at least this many entries of each part.
constexpr std::int64_t entries_per_range = std::int64_t{1} << 15;

constexpr std::int64_t rows_between_checks = 256;

}  // namespace

void merge(const MergeShape& shape, DType dtype, const std::vector<TensorView>& outputs,
           const std::vector<const double*>& logsumexps, const TensorView& output,
           double* logsumexp) {
  const KernelTable& kernels = active_kernels();
  const std::size_t parts = outputs.size();
  const std::int64_t rows = shape.batch * shape.heads * shape.queries;
  auto join = [&](std::int64_t begin, std::int64_t end, Cancellation& cancellation) {
    std::vector<const void*> addresses(parts);
    std::vector<double> logs(parts), weights(parts);
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t b = row / shape.queries / shape.heads;
      const std::int64_t h = row / shape.queries % shape.heads, q = row % shape.queries;
      for (std::size_t part = 0; part < parts; ++part) {
        addresses[part] = row_of(outputs[part], dtype, b, h, q);
        logs[part] = logsumexps[part][row];
      }
      kernels.merge_row({static_cast<int>(parts), static_cast<int>(shape.head_dim), dtype,
                         addresses.data(), logs.data(), weights.data(),
                         row_of(output, dtype, b, h, q), logsumexp + row});
      if (row % rows_between_checks == 0 && cancellation.requested()) return;
    }
  };
  parallel_for(rows, 1 + entries_per_range / (1 + shape.head_dim), join);
}

}  // namespace ntk_alibi

#include "core/visibility.h"

#include <algorithm>

namespace ntk_alibi {
namespace {

constexpr std::int64_t fields = 4;  // of QueryRows

std::int32_t query_position(const AttentionProblem& problem, std::int64_t b, std::int64_t i) {
  const PositionView& view = problem.query_positions;
  return view.data ? view.data[b * view.batch_stride + i]
                   : static_cast<std::int32_t>(problem.key_length - problem.query_length + i);
}

}  // namespace

Visibility::Visibility(const AttentionProblem& problem)
    : keys_(problem),
      query_length_(problem.query_length),
      rows_differ_(problem.query_positions.batch_stride != 0) {
  const std::int64_t rows = rows_differ_ ? problem.batch : 1, queries = query_length_;
  query_rows_.resize(rows * fields * queries);
  // A batch without rows may have no positions to read.
  for (std::int64_t b = 0; b < std::min(rows, problem.batch); ++b)
    for (std::int64_t i = 0; i < queries; ++i) {
      const std::int32_t position = query_position(problem, b, i);
      const VisibleInterval interval = problem.mask.interval(position);
      std::int32_t* row = query_rows_.data() + b * fields * queries + i;
      row[0] = position;
      row[queries] = interval.least_distance;
      row[2 * queries] = interval.greatest_distance;
      row[3 * queries] = interval.sink_end;
    }
}

QueryRows Visibility::queries(std::int64_t b, std::int64_t first) const {
  const std::int64_t row = rows_differ_ ? b : 0;
  const std::int32_t* data = query_rows_.data() + row * fields * query_length_ + first;
  return {data, data + query_length_, data + 2 * query_length_, data + 3 * query_length_};
}

}  // namespace ntk_alibi

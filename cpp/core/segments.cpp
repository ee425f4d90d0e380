#include "core/segments.h"

#include <algorithm>

#include "core/dropout.h"
#include "core/parallel.h"

namespace ntk_alibi {
namespace {

// Threads share the segments if each thread gets this many, which evens out their cost. All threads
// work together on a larger segment.
constexpr std::int64_t segments_per_thread = 8;

// Multiply-adds in proportion.
std::int64_t work(const Segment& segment) {
  return segment.rows.size() * segment.queries.size() *
         std::max<std::int64_t>(1, segment.keys.size());
}

// The rows of a tensor from a batch row and a column on.
TensorView from(TensorView view, DType dtype, std::int64_t row, std::int64_t column) {
  if (view.data != nullptr) view.data = row_of(view, dtype, row, 0, column);
  return view;
}

QueryView from(QueryView view, const Segment& segment) {
  if (view.data != nullptr)
    view.data += segment.rows.begin * view.batch_stride + segment.queries.begin * view.query_stride;
  return view;
}

ScaleView from(ScaleView view, const Segment& segment) {
  if (view.data != nullptr)
    view.data += segment.rows.begin * view.batch_stride + segment.keys.begin;
  return view;
}

// The element of a contiguous array with `width` entries for each batch row; null for null.
template <class T>
T* from(T* data, std::int64_t row, std::int64_t width, std::int64_t column) {
  return data == nullptr ? nullptr : data + row * width + column;
}

// The positions of a segment, without data if they are first, first + 1, ... in all rows.
PositionView positions_of(PositionView view, const Range& rows, const Range& columns,
                          std::int64_t first) {
  if (view.data == nullptr) return view;
  view.data += rows.begin * view.batch_stride + columns.begin;
  const std::int64_t different = view.batch_stride == 0 ? 1 : rows.size();
  for (std::int64_t b = 0; b < different; ++b)
    for (std::int64_t i = 0; i < columns.size(); ++i)
      if (view.data[b * view.batch_stride + i] != first + i) return view;
  return {nullptr, 0};
}

AttentionBias bias_of(AttentionBias bias, const Segment& segment) {
  bias.left = from(bias.left, segment), bias.right = from(bias.right, segment);
  bias.sums = from(bias.sums, segment.rows.begin, bias.sums_batch_stride, segment.keys.begin);
  const std::int64_t* strides = bias.dense_strides;
  bias.dense = from(bias.dense, segment.rows.begin, strides[0],
                    segment.queries.begin * strides[2] + segment.keys.begin * strides[3]);
  return bias;
}

AttentionProblem problem_of(const AttentionProblem& packed, const Segment& segment) {
  AttentionProblem p = packed;
  const std::int64_t row = segment.rows.begin, query = segment.queries.begin,
                     key = segment.keys.begin;
  const DType stored = p.key_scales.data != nullptr ? DType::int8 : p.dtype;
  p.query = from(p.query, p.dtype, row, query);
  p.output = from(p.output, p.dtype, row, query);
  p.key = from(p.key, stored, row, key);
  p.value = from(p.value, stored, row, key);
  p.key_scales = from(p.key_scales, segment), p.value_scales = from(p.value_scales, segment);
  p.batch = segment.rows.size();
  p.query_length = segment.queries.size(), p.key_length = segment.keys.size();
  p.factors = from(p.factors, segment);
  p.key_positions = positions_of(p.key_positions, segment.rows, segment.keys, 0);
  if (p.key_positions.data == nullptr)
    p.query_positions = positions_of(p.query_positions, segment.rows, segment.queries,
                                     p.key_length - p.query_length);
  else if (p.query_positions.data != nullptr)
    p.query_positions.data += row * p.query_positions.batch_stride + query;
  p.key_mask = from(p.key_mask, row, p.key_pitch, key);
  p.visibility = nullptr;
  p.pairs.first_row += row, p.pairs.first_query += query, p.pairs.first_key += key;
  p.bias = bias_of(p.bias, segment);
  p.dropout = moved(p.dropout, row, 0, query);
  p.dropout.first_key += key;
  const std::int64_t queries_of_row = p.query_heads * p.query_pitch;
  p.logsumexp = from(p.logsumexp, row, queries_of_row, query);
  p.known_logsumexps = from(p.known_logsumexps, row, queries_of_row, query);
  p.block_counts = from(p.block_counts, row, p.query_heads * kinds_of_counts, 0);
  return p;
}

AttentionGradients gradients_of(const AttentionProblem& packed, const AttentionGradients& all,
                                const Segment& segment) {
  AttentionGradients g = all;
  const std::int64_t row = segment.rows.begin, query = segment.queries.begin,
                     key = segment.keys.begin;
  const std::int64_t queries_of_row = packed.query_heads * packed.query_pitch;
  g.output_gradient = from(g.output_gradient, packed.dtype, row, query);
  g.logsumexp_gradient = from(g.logsumexp_gradient, row, queries_of_row, query);
  g.query = from(g.query, packed.dtype, row, query);
  g.key = from(g.key, packed.dtype, row, key);
  g.value = from(g.value, packed.dtype, row, key);
  for (float*& slopes : g.slopes) slopes = from(slopes, row, queries_of_row, query);
  g.sums = from(g.sums, row, packed.query_heads * packed.key_pitch, key);
  g.dense = from(g.dense, row, queries_of_row * packed.key_pitch, query * packed.key_pitch + key);
  return g;
}

// Calls body(segment) for every segment. Within the body of a segment that is small beside all of
// them there is one thread, if bodies of several segments may run at the same time.
template <class Body>
void for_each_segment(std::vector<Segment> segments, bool several, Body&& body) {
  std::stable_sort(segments.begin(), segments.end(),
                   [](const Segment& a, const Segment& b) { return work(a) > work(b); });
  std::int64_t all = 0;
  for (const Segment& segment : segments) all += work(segment);
  const std::int64_t most = several ? all / (segments_per_thread * num_threads()) : -1;
  std::size_t large = 0;
  for (; large < segments.size() && work(segments[large]) > most; ++large) body(segments[large]);
  const auto small = static_cast<std::int64_t>(segments.size() - large);
  for_each_task({small, 1, TaskOrder::as_listed}, {0, 0},
                [&](std::int64_t task, void*, StopCheck) { body(segments[large + task]); });
}

}  // namespace

void attention_of_segments(const AttentionProblem& packed, std::vector<Segment> segments) {
  for_each_segment(std::move(segments), true,
                   [&](const Segment& segment) { attention(problem_of(packed, segment)); });
}

void attention_gradients_of_segments(const AttentionProblem& packed,
                                     const AttentionGradients& gradients,
                                     std::vector<Segment> segments) {
  // All segments add to the gradients of a table, always in the same order.
  for_each_segment(std::move(segments), gradients.table == nullptr, [&](const Segment& segment) {
    attention_gradients(problem_of(packed, segment), gradients_of(packed, gradients, segment));
  });
}

}  // namespace ntk_alibi

#include "core/attention_gradient.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/parallel.h"
#include "core/tiles.h"

namespace ntk_alibi {
namespace {

// The keys of each head are cut into parts until there are this many tasks. Gradients of queries
// are sums over the parts, so their number depends on the problem alone, not on the threads.
constexpr std::int64_t least_tasks = 8;
constexpr std::int64_t least_blocks_per_part = 8;

// Threads share out the joining of the parts in ranges of at least this many rows.
constexpr std::int64_t rows_per_range = 64;

// A task is a part of the keys of one head, with all queries of that head: no other task adds to
// the gradients of those keys.
class Gradients {
 public:
  Gradients(const Tiles& tiles, const AttentionProblem& problem,
            const AttentionGradients& gradients)
      : tiles_(tiles),
        problem_(problem),
        gradients_(gradients),
        rows_(problem.batch * problem.query_heads * problem.query_length),
        width_((problem.head_dim + gradient_padding - 1) / gradient_padding * gradient_padding) {
    const std::int64_t heads = problem.batch * problem.key_heads;
    // All parts would add to the gradients of a table or of sums.
    const bool whole = gradients.table != nullptr || gradients.sums != nullptr;
    const std::int64_t blocks = block_count(problem.key_length);
    parts_ =
        whole ? 1
              : std::clamp<std::int64_t>((least_tasks + heads - 1) / heads, 1,
                                         std::max<std::int64_t>(1, blocks / least_blocks_per_part));
    if (parts_ > 1) {
      query_parts_.resize(parts_ * rows_ * problem.head_dim);
      for (int side = 0; side < slope_sides; ++side)
        if (gradients.slopes[side] != nullptr) slope_parts_[side].resize(parts_ * rows_);
    }
    if (gradients.table != nullptr)
      tables_.resize(problem.batch * problem.query_heads * problem.bias.table_size);
  }

  void run() {
    const std::int64_t tasks = problem_.batch * problem_.key_heads * parts_;
    const std::vector<std::int64_t> order = costliest_first(tasks);
    const std::int64_t bytes = tiles_.kernels().gradient_scratch_bytes(tiles_.largest());
    for_each_task(
        {tasks, 1, TaskOrder::as_listed}, {bytes, tiles_.kernels().scratch_header_bytes},
        [&](std::int64_t n, void* scratch, StopCheck stop) { run_task(order[n], scratch, stop); });
    if (parts_ > 1) join_parts();
    if (gradients_.table != nullptr) join_tables();
  }

 private:
  // Heads with flat slopes read more keys. A long task at the end would keep a single thread busy.
  std::vector<std::int64_t> costliest_first(std::int64_t tasks) const {
    std::vector<std::int64_t> order(tasks);
    std::iota(order.begin(), order.end(), 0);
    if (problem_.bias.left.data == nullptr || problem_.query_length == 0) return order;
    const std::int64_t group = problem_.query_heads / problem_.key_heads;
    const auto slope = [&](std::int64_t task) {
      const std::int64_t head = task / parts_;
      return value_at(problem_.bias.left, head / problem_.key_heads,
                      head % problem_.key_heads * group, 0);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int64_t a, std::int64_t b) { return slope(a) < slope(b); });
    return order;
  }

  void run_task(std::int64_t task, void* scratch, StopCheck stop) {
    const std::int64_t part = task % parts_, head = task / parts_;
    const std::int64_t b = head / problem_.key_heads, kv = head % problem_.key_heads;
    const KeyList keys = tiles_.keys_of(b).view();
    const std::int64_t blocks = block_count(keys.count);
    const std::int64_t first = part * blocks / parts_, end = (part + 1) * blocks / parts_;
    std::vector<float> key_gradient((end - first) * keys_per_block * width_);
    std::vector<float> value_gradient(key_gradient.size());
    const std::int64_t group = problem_.query_heads / problem_.key_heads;
    for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h)
      for (std::int64_t t = 0; t < tiles_.cut().count(); ++t) {
        if (stop.requested(stop.context)) return;
        GradientTile gradient{};
        gradient.first_block = first;
        gradient.end_block = end;
        gradient.key_gradient = key_gradient.data();
        gradient.value_gradient = value_gradient.data();
        run_tile(b, h, t, part, gradient, scratch, stop);
      }
    write_rows(b, kv, keys, first, end, key_gradient, gradients_.key);
    write_rows(b, kv, keys, first, end, value_gradient, gradients_.value);
  }

  void run_tile(std::int64_t b, std::int64_t h, std::int64_t number, std::int64_t part,
                GradientTile& gradient, void* scratch, StopCheck stop) {
    const AttentionProblem& p = problem_;
    const std::int64_t i = tiles_.cut().begin(number), count = tiles_.cut().queries(number);
    TileRows rows;
    AttentionTile tile = tiles_.describe(b, h, i, count, rows);
    tile.stop = stop;
    const std::int64_t row = (b * p.query_heads + h) * p.query_length + i;
    const std::int64_t place = (b * p.query_heads + h) * p.query_pitch + i;
    gradient.tile = &tile;
    gradient.output_gradient = row_of(gradients_.output_gradient, p.dtype, b, h, i);
    gradient.output_gradient_stride = gradients_.output_gradient.row_stride;
    gradient.logsumexp_gradient =
        gradients_.logsumexp_gradient ? gradients_.logsumexp_gradient + place : nullptr;
    if (parts_ > 1) {
      gradient.query_gradient = query_parts_.data() + (part * rows_ + row) * p.head_dim;
      gradient.query_gradient_stride = p.head_dim;
      gradient.query_gradient_dtype = DType::float32;
    } else {
      gradient.query_gradient = row_of(gradients_.query, p.dtype, b, h, i);
      gradient.query_gradient_stride = gradients_.query.row_stride;
      gradient.query_gradient_dtype = p.dtype;
    }
    for (int side = 0; side < slope_sides; ++side)
      if (gradients_.slopes[side] != nullptr)
        gradient.slopes[side] = parts_ > 1 ? slope_parts_[side].data() + part * rows_ + row
                                           : gradients_.slopes[side] + place;
    double query_sums[most_queries_per_tile];
    if (gradients_.sums != nullptr) {
      gradient.query_sums = query_sums;
      gradient.key_sums = gradients_.sums + (b * p.query_heads + h) * p.key_pitch;
    }
    if (gradients_.table != nullptr)
      gradient.table = tables_.data() + (b * p.query_heads + h) * p.bias.table_size;
    if (gradients_.dense != nullptr) {
      gradient.dense = gradients_.dense + place * p.key_pitch;
      gradient.dense_query_stride = p.key_pitch;
      gradient.dense_key_stride = 1;
    }
    tiles_.kernels().gradient_tile(gradient, scratch);
    if (gradients_.sums != nullptr)
      for (std::int64_t r = 0; r < count; ++r)
        gradient.key_sums[p.key_length - p.query_length + i + r] += query_sums[r];
  }

  void write_rows(std::int64_t b, std::int64_t kv, const KeyList& keys, std::int64_t first,
                  std::int64_t end, const std::vector<float>& rows, const TensorView& out) const {
    const std::int64_t begin = first * keys_per_block;
    const std::int64_t last = std::min(end * keys_per_block, keys.count);
    for (std::int64_t c = begin; c < last; ++c) {
      const std::int64_t key = keys.indices ? keys.indices[c] : c;
      tiles_.kernels().write_row(rows.data() + (c - begin) * width_,
                                 static_cast<int>(problem_.head_dim), problem_.dtype,
                                 row_of(out, problem_.dtype, b, kv, key));
    }
  }

  // Sums over the parts in ascending order, so that the bits do not depend on the threads.
  void join_parts() {
    const std::int64_t head_dim = problem_.head_dim;
    parallel_for_each(rows_, rows_per_range, [&](std::int64_t row) {
      float* sum = query_parts_.data() + row * head_dim;
      for (std::int64_t part = 1; part < parts_; ++part)
        for (std::int64_t d = 0; d < head_dim; ++d) sum[d] += sum[part * rows_ * head_dim + d];
      const std::int64_t head = row / problem_.query_length;
      tiles_.kernels().write_row(
          sum, static_cast<int>(head_dim), problem_.dtype,
          row_of(gradients_.query, problem_.dtype, head / problem_.query_heads,
                 head % problem_.query_heads, row % problem_.query_length));
      for (int side = 0; side < slope_sides; ++side)
        join_slopes(slope_parts_[side], row, gradients_.slopes[side]);
    });
  }

  void join_slopes(const std::vector<float>& parts, std::int64_t row, float* all) const {
    if (all == nullptr) return;
    float& sum =
        all[row / problem_.query_length * problem_.query_pitch + row % problem_.query_length];
    sum = 0.0f;
    for (std::int64_t part = 0; part < parts_; ++part) sum += parts[part * rows_ + row];
  }

  void join_tables() const {
    const std::int64_t size = problem_.query_heads * problem_.bias.table_size;
    for (std::int64_t b = 0; b < problem_.batch; ++b)
      for (std::int64_t t = 0; t < size; ++t) gradients_.table[t] += tables_[b * size + t];
  }

  const Tiles& tiles_;
  const AttentionProblem& problem_;
  const AttentionGradients& gradients_;
  const std::int64_t rows_;                                    // batch x heads x queries
  const std::int64_t width_;                                   // channels of padded rows
  std::int64_t parts_;                                         // of the keys of each head
  std::vector<float> query_parts_, slope_parts_[slope_sides];  // (parts, rows, ...)
  std::vector<double> tables_;                                 // (batch, heads, distances)
};

}  // namespace

void attention_gradients(const AttentionProblem& problem, const AttentionGradients& gradients) {
  const Tiles tiles(problem);
  if (problem.batch * problem.key_heads > 0) Gradients(tiles, problem, gradients).run();
}

}  // namespace ntk_alibi

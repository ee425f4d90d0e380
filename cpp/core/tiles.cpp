#include "core/tiles.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "core/dropout.h"

namespace ntk_alibi {
namespace {

// The products of distances up to this with slopes up to the other are small enough to be added to
// scores in float32.
constexpr std::int64_t near_distance = 64;
constexpr float moderate_slope = 1.0f;

// Steeper slopes count as this one, whose product with log2 e is just finite.
constexpr float greatest_slope = 2.358e38f;

// With factors.
float scale_of(const AttentionProblem& problem, std::int64_t b, std::int64_t h, std::int64_t i) {
  return problem.scale * value_at(problem.factors, b, h, i);
}

float greatest_scale(const AttentionProblem& problem) {
  const QueryView& factors = problem.factors;
  if (factors.data == nullptr) return std::fabs(problem.scale);
  const auto different = [](std::int64_t size, std::int64_t stride) {
    return stride == 0 ? std::min<std::int64_t>(size, 1) : size;
  };
  float greatest = 0.0f;
  for (std::int64_t b = 0; b < different(problem.batch, factors.batch_stride); ++b)
    for (std::int64_t h = 0; h < different(problem.query_heads, factors.head_stride); ++h)
      for (std::int64_t i = 0; i < different(problem.query_length, factors.query_stride); ++i)
        greatest = std::max(greatest, std::fabs(scale_of(problem, b, h, i)));
  return greatest;
}

// Kernels take finite slopes: an infinite one hides its side instead.
float finite_slope(float slope) {
  return std::isinf(slope) ? 0.0f : std::min(slope, greatest_slope);
}

// The value of a bias that is not linear.
double gathered_bias(const TileBias& bias, int query, std::int64_t key, std::int64_t distance) {
  if (bias.key_sums != nullptr) return bias.query_sums[query] - bias.key_sums[key];
  if (bias.dense != nullptr)
    return bias.dense[query * bias.dense_query_stride + key * bias.dense_key_stride];
  const std::int64_t index = distance - bias.table_begin;
  return index >= 0 && index < bias.table_size ? bias.table[index] : 0.0;
}

// Shifts of a bias without slopes.
constexpr double no_shifts[most_queries_per_tile] = {};

}  // namespace

Tiles::Tiles(const AttentionProblem& problem)
    : problem_(problem),
      kernels_(active_kernels()),
      visibility_(problem.visibility ? problem.visibility
                                     : std::make_shared<const Visibility>(problem)),
      cut_(problem.query_length, kernels_.queries_per_tile),
      bits_(problem, visibility_->keys(), cut_),
      bounds_(problem, visibility_->keys()),
      greatest_scale_(greatest_scale(problem)) {
  std::fill(std::begin(scales_), std::end(scales_), problem.scale);
}

AttentionTile Tiles::describe(std::int64_t b, std::int64_t h, std::int64_t first,
                              std::int64_t count, TileRows& rows) const {
  const AttentionProblem& p = problem_;
  const std::int64_t key_head = h / (p.query_heads / p.key_heads);
  QueryRows queries = visibility_->queries(b, first);
  if (p.bias.hides_sides) hide_sides(b, h, first, count, queries, rows);
  AttentionTile tile;
  tile.dtype = p.dtype;
  tile.query = row_of(p.query, p.dtype, b, h, first);
  tile.key = head_rows(p.key, p.key_scales, p.dtype, b, key_head);
  tile.value = head_rows(p.value, p.value_scales, p.dtype, b, key_head);
  tile.output = row_of(p.output, p.dtype, b, h, first);
  tile.logsumexp =
      p.logsumexp ? p.logsumexp + (b * p.query_heads + h) * p.query_pitch + first : nullptr;
  tile.weightless = rows.weightless;
  tile.query_stride = p.query.row_stride;
  tile.output_stride = p.output.row_stride;
  tile.query_count = static_cast<int>(count);
  tile.head_dim = static_cast<int>(p.head_dim);
  tile.scales = scales_;
  if (p.factors.data != nullptr) {
    for (std::int64_t r = 0; r < count; ++r) rows.scales[r] = scale_of(p, b, h, first + r);
    tile.scales = rows.scales;
  }
  tile.greatest_scale = greatest_scale_;
  tile.query_positions = queries.positions;
  tile.keys = keys_of(b).view();
  tile.tiles_of_keys = tiles_of_keys();
  tile.mask = {
      queries.least_distances, queries.greatest_distances, queries.sink_ends, nullptr, 0, nullptr};
  if (bits_.exist()) {
    tile.mask.words = bits_.words(b, h, first);
    tile.mask.words_stride = bits_.stride();
    tile.mask.shown = bits_.shown(b, h, first, count);
  }
  tile.bias = describe_bias(b, h, first, count, queries, rows);
  tile.dropout = moved(p.dropout, b, h, first);
  tile.skipping = bounds_.of_head(b, h);
  if (p.known_logsumexps != nullptr)
    tile.skipping.known_logsumexps =
        p.known_logsumexps + (b * p.query_heads + h) * p.query_pitch + first;
  return tile;
}

AttentionTile Tiles::largest() const {
  AttentionTile tile{};
  tile.key = head_rows(problem_.key, problem_.key_scales, problem_.dtype, 0, 0);
  tile.value = head_rows(problem_.value, problem_.value_scales, problem_.dtype, 0, 0);
  tile.head_dim = static_cast<int>(problem_.head_dim);
  tile.keys.count = problem_.key_length;
  tile.tiles_of_keys = tiles_of_keys();
  return tile;
}

std::int64_t Tiles::tiles_of_keys() const {
  return cut_.count() * problem_.query_heads / std::max<std::int64_t>(1, problem_.key_heads);
}

// Hides the sides whose slopes are infinite, sinks included.
void Tiles::hide_sides(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count,
                       QueryRows& queries, TileRows& rows) const {
  for (std::int64_t r = 0; r < count; ++r) {
    VisibleInterval interval = queries.interval(r);
    if (std::isinf(value_at(problem_.bias.left, b, h, first + r))) interval.hide_keys_behind();
    if (std::isinf(value_at(problem_.bias.right, b, h, first + r))) interval.hide_keys_ahead();
    rows.least_distances[r] = interval.least_distance;
    rows.greatest_distances[r] = interval.greatest_distance;
    rows.sink_ends[r] = interval.sink_end;
  }
  queries = {queries.positions, rows.least_distances, rows.greatest_distances, rows.sink_ends};
}

void Tiles::describe_slopes(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count,
                            const QueryRows& queries, TileRows& rows) const {
  const AttentionProblem& p = problem_;
  const bool ahead = p.mask.sees_ahead();
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t i = first + r;
    const float left = value_at(p.bias.left, b, h, i);
    const float right = ahead ? value_at(p.bias.right, b, h, i) : 0.0f;
    rows.left_slopes[r] = finite_slope(left);
    rows.right_slopes[r] = finite_slope(right);
    const bool moderate = std::max(rows.left_slopes[r], rows.right_slopes[r]) <= moderate_slope;
    const std::int64_t negligible = moderate ? near_distance : 0;
    const std::int32_t position = queries.positions[r];
    const VisibleInterval interval = queries.interval(r);
    const std::int64_t nearest =
        bits_.exist()
            ? keys_of(b).one_sided_distance(position, interval, negligible, bits_.words(b, h, i))
            : keys_of(b).one_sided_distance(position, interval, negligible);
    const double distance = static_cast<double>(nearest);
    rows.shifts[r] = nearest > 0 ? -left * distance : nearest < 0 ? right * distance : 0.0;
    rows.origins[r] = static_cast<std::int32_t>(position - nearest);
  }
}

TileBias Tiles::describe_bias(std::int64_t b, std::int64_t h, std::int64_t first,
                              std::int64_t count, const QueryRows& queries, TileRows& rows) const {
  const AttentionBias& bias = problem_.bias;
  const auto sees_ahead = [](std::int32_t least_distance) { return least_distance < 0; };
  const bool two_sided =
      problem_.mask.sees_ahead() &&
      (!bias.hides_sides ||
       std::any_of(queries.least_distances, queries.least_distances + count, sees_ahead));
  TileBias tile_bias{};
  tile_bias.kind = bias.kind == BiasKind::two_sided && !two_sided ? BiasKind::one_sided : bias.kind;
  tile_bias.origins = queries.positions;
  tile_bias.shifts = no_shifts;
  if (bias.left.data != nullptr) {
    describe_slopes(b, h, first, count, queries, rows);
    tile_bias.origins = rows.origins;
    tile_bias.shifts = rows.shifts;
    tile_bias.left_slopes = rows.left_slopes;
    tile_bias.right_slopes = rows.right_slopes;
  }
  if (bias.sums != nullptr) {
    tile_bias.key_sums = bias.sums + b * bias.sums_batch_stride + h * bias.sums_head_stride;
    tile_bias.query_sums = tile_bias.key_sums + problem_.key_length - problem_.query_length + first;
  }
  tile_bias.table = bias.table ? bias.table + h * bias.table_head_stride : nullptr;
  tile_bias.table_begin = bias.table_begin;
  tile_bias.table_size = bias.table_size;
  tile_bias.dense = bias.dense ? bias.dense + b * bias.dense_strides[0] +
                                     h * bias.dense_strides[1] + first * bias.dense_strides[2]
                               : nullptr;
  tile_bias.dense_query_stride = bias.dense_strides[2];
  tile_bias.dense_key_stride = bias.dense_strides[3];
  return tile_bias;
}

bool Tiles::overflowed(std::int64_t b, const AttentionTile& tile) const {
  const HeadRows output{tile.output, tile.output_stride, tile.dtype, nullptr};
  if (!kernels_.rows_are_finite(output, 0, tile.query_count, tile.head_dim)) return true;
  for (int r = 0; r < tile.query_count; ++r)
    if (tile.weightless[r] && sees_a_key(b, tile, r)) return true;
  return false;
}

// A bias of -infinity hides keys, too. A certificate may leave out all keys beside a known sum.
bool Tiles::sees_a_key(std::int64_t b, const AttentionTile& tile, int query) const {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double* known = tile.skipping.known_logsumexps;
  if (known != nullptr && known[query] > -infinity) return false;
  const VisibleInterval interval{tile.mask.least_distances[query],
                                 tile.mask.greatest_distances[query], tile.mask.sink_ends[query]};
  const std::int32_t position = tile.query_positions[query];
  if (!keys_of(b).is_any_visible(position, interval)) return false;
  const TileBias& bias = tile.bias;
  const std::uint64_t* words = tile.mask.words;
  const bool linear = bias.table == nullptr && bias.key_sums == nullptr && bias.dense == nullptr;
  if (linear && words == nullptr) return true;
  const KeyList keys = keys_of(b).view();
  for (std::int64_t c = 0; c < keys.count; ++c) {
    if (words != nullptr && !has_bit(words + query * tile.mask.words_stride, c)) continue;
    const std::int64_t row = keys.indices ? keys.indices[c] : c;
    const std::int64_t distance = std::int64_t{position} - (keys.positions ? keys.positions[c] : c);
    if (interval.shows(distance, position) &&
        (linear || gathered_bias(bias, query, row, distance) > -infinity))
      return true;
  }
  return false;
}

bool Tiles::inputs_are_finite(std::int64_t b, const AttentionTile& tile) const {
  const auto finite = [&](const HeadRows& rows, std::int64_t first, std::int64_t count) {
    return kernels_.rows_are_finite(rows, first, count, tile.head_dim);
  };
  if (!finite({tile.query, tile.query_stride, tile.dtype, nullptr}, 0, tile.query_count))
    return false;
  const KeyList keys = keys_of(b).view();
  for (std::int64_t c = 0; c < keys.count; ++c) {
    const std::int64_t row = keys.indices ? keys.indices[c] : c;
    if (!finite(tile.key, row, 1) || !finite(tile.value, row, 1)) return false;
    if (tile.bias.dense == nullptr) continue;
    for (int r = 0; r < tile.query_count; ++r)
      if (std::isnan(gathered_bias(tile.bias, r, row, 0))) return false;
  }
  return true;
}

void Tiles::refuse_overflow(std::int64_t b, const AttentionTile& tile) const {
  if (!overflowed(b, tile) || !inputs_are_finite(b, tile)) return;
  const char* divided =
      problem_.dropout.least_kept == 0 ? "" : ", which dropout divides by what it keeps,";
  throw std::domain_error(
      std::string("query, key, value, scale and bias must give scores and sums within float32's "
                  "range (3.4e38), and outputs") +
      divided + " within their dtype's (65504 for float16), got finite inputs that exceed it");
}

void Tiles::count_blocks(std::int64_t head, const AttentionTile& tile,
                         const BlocksRead& read) const {
  if (problem_.block_counts == nullptr) return;
  add_counts(head, read.scored, kernels_.visible_blocks(tile), read.weighed);
}

void Tiles::count_visible_blocks(std::int64_t head, const AttentionTile& tile) const {
  if (problem_.block_counts == nullptr) return;
  const std::int64_t visible = kernels_.visible_blocks(tile);
  add_counts(head, visible, visible, visible);
}

void Tiles::add_counts(std::int64_t head, std::int64_t scored, std::int64_t visible,
                       std::int64_t weighed) const {
  const std::int64_t counted[] = {scored, visible, weighed};
  static_assert(sizeof(counted) / sizeof(*counted) == kinds_of_counts, "one number of each kind");
  for (int kind = 0; kind < kinds_of_counts; ++kind)
    __atomic_fetch_add(problem_.block_counts + kinds_of_counts * head + kind, counted[kind],
                       __ATOMIC_RELAXED);
}

}  // namespace ntk_alibi

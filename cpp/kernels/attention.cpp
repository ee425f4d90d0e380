// Attention of one tile of queries, lanes = queries: keys and values are read in place, broadcast,
// and everything that belongs to a query (maximum, sum, mask, bias) stays within its lane.
#include "kernels/attention.h"

#include "kernels/attention_bias.h"
#include "kernels/attention_scratch.h"
#include "kernels/certificate.h"
#include "kernels/elements.h"
#include "kernels/exp2.h"
#include "kernels/key_list.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {
namespace {

using Rows = const float* [keys_per_block];

// Where the rows of a block of keys (or values) are as float32: in place, or converted.
void find_rows(const AttentionTile& tile, const void* from, std::int64_t stride, std::int64_t begin,
               int count, float* converted, Rows rows) {
  for (int c = 0; c < count; ++c) {
    rows[c] =
        as_float32(row_at(from, stride, index_of(tile.keys, begin + c), tile.dtype), tile.head_dim,
                   tile.dtype, converted + static_cast<std::int64_t>(c) * tile.head_dim);
  }
  for (int c = count; c < keys_per_block; ++c) rows[c] = rows[count - 1];
}

void load_queries(const AttentionTile& tile, const Scratch& s) {
  Rows rows;
  for (int r = 0; r < queries_per_tile; ++r) {
    // Lanes without a query repeat the last one and are not written back.
    const int i = r < tile.query_count ? r : tile.query_count - 1;
    rows[r] = as_float32(row_at(tile.query, tile.query_stride, i, tile.dtype), tile.head_dim,
                         tile.dtype, s.keys + static_cast<std::int64_t>(r) * tile.head_dim);
  }
  const float scale = tile.scale * log2_e;
  for (int d = 0; d < tile.head_dim; ++d)
    for (int r = 0; r < queries_per_tile; ++r) lane_row(s.query, d)[r] = rows[r][d] * scale;
}

void load_tile(const AttentionTile& tile, const Scratch& s) {
  load_queries(tile, s);
  for (int r = 0; r < queries_per_tile; ++r) {
    const int i = r < tile.query_count ? r : tile.query_count - 1;
    s.maximum[r] = -infinity;
    s.sum[r] = 0.0f;
    s.ints[r] = tile.query_positions[i];
    s.ints[queries_per_tile + r] = tile.mask.least_distances[i];
    s.ints[2 * queries_per_tile + r] = tile.mask.greatest_distances[i];
    if (tile.bias.kind == BiasKind::one_sided || tile.bias.kind == BiasKind::two_sided) {
      lane_row(s.slopes, 0)[r] = tile.bias.left_slopes[i] * log2_e;
      lane_row(s.slopes, 1)[r] = tile.bias.right_slopes[i] * log2_e;
    }
  }
  for (std::int64_t i = 0; i < tile.head_dim * tile_row(); ++i) s.output[i] = 0.0f;
}

void write_tile(const AttentionTile& tile, const Scratch& s) {
  for (int r = 0; r < tile.query_count; ++r) {
    const float sum = s.sum[r];
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    float* row = s.keys;
    for (int d = 0; d < tile.head_dim; ++d) row[d] = lane_row(s.output, d)[r] * inverse;
    write_row(row, tile.head_dim, tile.dtype,
              static_cast<char*>(tile.output) + row_bytes(tile.output_stride, r, tile.dtype));
    if (tile.logsumexp != nullptr) tile.logsumexp[r] = logsumexp(s.maximum[r], sum);
  }
}

// --- products
// ----------------------------------------------------------------------------------------

// weights[c] = keys[c] . query, for all keys of the block.
void multiply_keys(const Scratch& s, const Rows& keys, int count, int head_dim) {
  for (int c = 0; c < count; c += rows_per_step) {
    f32v dot[rows_per_step][vectors_per_tile] = {};
    const float* const* row = keys + c;
    for (int d = 0; d < head_dim; ++d) {
      f32v query[vectors_per_tile];
      for (int v = 0; v < vectors_per_tile; ++v) query[v] = vector_of(s.query, d, v);
      for (int u = 0; u < rows_per_step; ++u) {
        const f32v key = broadcast(row[u][d]);
        for (int v = 0; v < vectors_per_tile; ++v) dot[u][v] += key * query[v];
      }
    }
    for (int u = 0; u < rows_per_step; ++u)
      for (int v = 0; v < vectors_per_tile; ++v) store_vector(s.weights, c + u, v, dot[u][v]);
  }
}

// output[d .. d + Channels) = rescaled, plus the sum over keys of weights[c] value[c][d]. A masked
// weight is 0, and with Guarded a 0 takes part in no arithmetic, whatever the value.
template <int Channels, bool Guarded>
void add_values_at(const Scratch& s, const Rows& values, int count, int d) {
  f32v sum[Channels][vectors_per_tile] = {};
  for (int c = 0; c < count; ++c) {
    f32v weight[vectors_per_tile];
    for (int v = 0; v < vectors_per_tile; ++v) weight[v] = vector_of(s.weights, c, v);
    for (int u = 0; u < Channels; ++u) {
      const f32v value = broadcast(values[c][d + u]);
      for (int v = 0; v < vectors_per_tile; ++v) {
        const f32v with = sum[u][v] + value * weight[v];
        sum[u][v] = Guarded ? (weight[v] == 0.0f ? sum[u][v] : with) : with;
      }
    }
  }
  // A fresh sum for each block: one chain over all keys would lose half a digit.
  for (int u = 0; u < Channels; ++u)
    for (int v = 0; v < vectors_per_tile; ++v)
      store_vector(s.output, d + u, v,
                   vector_of(s.output, d + u, v) * vector_of(s.rescale, 0, v) + sum[u][v]);
}

template <bool Guarded>
void add_values(const Scratch& s, const Rows& values, int count, int head_dim) {
  int d = 0;
  for (; d + rows_per_step <= head_dim; d += rows_per_step)
    add_values_at<rows_per_step, Guarded>(s, values, count, d);
  for (; d < head_dim; ++d) add_values_at<1, Guarded>(s, values, count, d);
}

bool all_finite(const Rows& rows, int count, int head_dim) {
  for (int c = 0; c < count; ++c) {
    float sum = 0.0f;
    for (int d = 0; d < head_dim; ++d)
      sum += rows[c][d] - rows[c][d];  // NaN for NaN and infinities
    if (sum != 0.0f) return false;
  }
  return true;
}

// --- softmax
// -----------------------------------------------------------------------------------------

// Dot products to scores: biased, masked; then to weights. Raises the maximum; what was
// summed before is to be rescaled.
template <class Bias, bool Masked>
void score_block(const AttentionTile& tile, const Scratch& s, std::int64_t begin, int count) {
  const Bias bias(tile, s);
  for (int v = 0; v < vectors_per_tile; ++v) {
    const i32v position = load<i32v>(s.ints + v * lanes);
    const i32v least = load<i32v>(s.ints + queries_per_tile + v * lanes);
    const i32v greatest = load<i32v>(s.ints + 2 * queries_per_tile + v * lanes);
    const f32v before = vector_of(s.maximum, 0, v);
    f32v maximum = before;
    for (int c = 0; c < count; ++c) {
      const std::int32_t key_position = position_of(tile.keys, begin + c);
      const i32v distance = position - broadcast(key_position);
      f32v score = bias.at(vector_of(s.weights, c, v), begin + c, v, distance);
      if (Masked) {
        const i32v sunk = broadcast(key_position < tile.mask.sink_end ? -1 : 0);
        const i32v visible = (distance >= least) & ((distance <= greatest) | sunk);
        score = visible ? score : broadcast(-infinity);
      }
      store_vector(s.weights, c, v, score);
      maximum = max(maximum, score);
    }
    store_vector(s.maximum, 0, v, maximum);
    // Without a visible key so far both maxima are -infinity, whose difference is NaN.
    const f32v reached = maximum == -infinity ? f32v{} : maximum;
    const f32v rescale = exp2<true>(before - reached);
    f32v sum = {};
    for (int c = 0; c < count; ++c) {
      const f32v weight = exp2<Masked>(vector_of(s.weights, c, v) - reached);
      store_vector(s.weights, c, v, weight);
      sum += weight;
    }
    store_vector(s.sum, 0, v, vector_of(s.sum, 0, v) * rescale + sum);
    store_vector(s.rescale, 0, v, rescale);
  }
}

template <class Bias>
void visit_block(const AttentionTile& tile, const Scratch& s, const TileReach& reach,
                 std::int64_t b) {
  const std::int64_t begin = b * keys_per_block;
  const int count = reach.keys_to_read(tile, begin);
  Rows rows;
  find_rows(tile, tile.key, tile.key_stride, begin, count, s.keys, rows);
  multiply_keys(s, rows, count, tile.head_dim);
  find_rows(tile, tile.value, tile.value_stride, begin, count, s.values, rows);
  if (reach.sees_all_of(block_of(tile.keys, b))) {
    score_block<Bias, false>(tile, s, begin, count);
    add_values<false>(s, rows, count, tile.head_dim);
  } else {
    score_block<Bias, true>(tile, s, begin, count);
    all_finite(rows, count, tile.head_dim) ? add_values<false>(s, rows, count, tile.head_dim)
                                           : add_values<true>(s, rows, count, tile.head_dim);
  }
}

TileBounds bounds_of(const AttentionTile& tile, const Scratch& s) {
  TileBounds bounds;
  if (tile.skipping.norms == nullptr) return bounds;
  for (int r = 0; r < tile.query_count; ++r) {
    double square = 0.0;
    for (int d = 0; d < tile.head_dim; ++d) {
      const double x = lane_row(s.query, d)[r];
      square += x * x;
    }
    const double norm = __builtin_sqrt(square);
    if (!(norm <= bounds.query_norm)) bounds.query_norm = norm;
    bounds.left_slope = smaller(bounds.left_slope, lane_row(s.slopes, 0)[r]);
    bounds.right_slope = smaller(bounds.right_slope, lane_row(s.slopes, 1)[r]);
  }
  return bounds;
}

// The least over the queries of the logarithm of what was summed, from below.
double least_log_sum(const Scratch& s) {
  f32v least = broadcast(infinity);
  for (int v = 0; v < vectors_per_tile; ++v) {
    const f32v maximum = vector_of(s.maximum, 0, v);
    // The exponent alone: a lower bound of the logarithm.
    const i32v exponent = (i32v)(bits_of(vector_of(s.sum, 0, v)) >> 23) - 127;
    const f32v sum = maximum + to_float(exponent);
    least = sum < least ? sum : least;
  }
  double minimum = infinity;
  for (int lane = 0; lane < lanes; ++lane) minimum = smaller(minimum, least[lane]);
  return minimum;
}

// Walks the blocks from the tile's own position back to the first key, then ahead of it, and leaves
// out what the certificate allows.
template <class Bias>
std::int64_t attend(const AttentionTile& tile, const Scratch& s) {
  const TileReach reach(tile);
  const std::int64_t blocks = block_count(tile.keys);
  std::int64_t middle = blocks - 1;
  while (middle > 0 && block_of(tile.keys, middle).least_position > reach.greatest_query) --middle;
  Certificate certificate(tile, reach, bounds_of(tile, s));
  std::int64_t visited = 0;
  const auto step = [&](std::int64_t b) {
    if (!reach.sees(block_of(tile.keys, b), tile.mask.sink_end)) return;
    if (certificate.drops(b)) return;
    visit_block<Bias>(tile, s, reach, b);
    certificate.update(least_log_sum(s));
    ++visited;
  };
  for (std::int64_t b = middle; b >= 0; --b) {
    if (reach.ends_before(tile, b) || certificate.drops_back_from(b)) break;
    step(b);
  }
  for (std::int64_t b = middle + 1; b < blocks; ++b) {
    if (reach.ends_behind(tile, b) || certificate.drops_ahead_from(b)) break;
    step(b);
  }
  return visited;
}

}  // namespace

std::int64_t attention_scratch_bytes(int head_dim) {
  const std::int64_t rows = 2 * head_dim + fixed_rows;
  return 4 * (rows * tile_row() + 2 * static_cast<std::int64_t>(keys_per_block) * head_dim);
}

std::int64_t attention_tile(const AttentionTile& tile, void* scratch) {
  const Scratch s = divide(scratch, tile.head_dim);
  load_tile(tile, s);
  std::int64_t visited = 0;
  switch (tile.bias.kind) {
    case BiasKind::none: visited = attend<NoBias>(tile, s); break;
    case BiasKind::one_sided: visited = attend<OneSidedBias>(tile, s); break;
    case BiasKind::two_sided: visited = attend<TwoSidedBias>(tile, s); break;
    case BiasKind::table: visited = attend<TableBias>(tile, s); break;
    case BiasKind::sums: visited = attend<SumsBias>(tile, s); break;
    case BiasKind::dense: visited = attend<DenseBias>(tile, s); break;
  }
  write_tile(tile, s);
  return visited;
}

std::int64_t visible_blocks(const AttentionTile& tile) {
  const TileReach reach(tile);
  std::int64_t visible = 0;
  for (std::int64_t b = 0; b < block_count(tile.keys); ++b)
    visible += reach.sees(block_of(tile.keys, b), tile.mask.sink_end);
  return visible;
}

float greatest_norm(const KeyList& keys, std::int64_t b, const void* key, std::int64_t key_stride,
                    int head_dim, DType dtype) {
  float greatest = 0.0f;
  for (int c = 0; c < keys_in_block(keys, b); ++c) {
    const char* row = row_at(key, key_stride, index_of(keys, b * keys_per_block + c), dtype);
    f32v squares = {};
    int d = 0;
    for (; dtype == DType::float32 && d + lanes <= head_dim; d += lanes) {
      const f32v x = load<f32v>(reinterpret_cast<const float*>(row) + d);
      squares += x * x;
    }
    for (; dtype != DType::float32 && d + lanes <= head_dim; d += lanes) {
      const u16v narrow = load<u16v>(reinterpret_cast<const std::uint16_t*>(row) + d);
      const f32v x = dtype == DType::bfloat16 ? from_bfloat16(narrow) : from_float16(narrow);
      squares += x * x;
    }
    float sum = 0.0f;
    for (int lane = 0; lane < lanes; ++lane) sum += squares[lane];
    for (; d < head_dim; ++d) sum += element(row, d, dtype) * element(row, d, dtype);
    if (!(sum < infinity)) return infinity;  // which bounds nothing, nor does NaN
    if (sum > greatest) greatest = sum;
  }
  return __builtin_sqrtf(greatest) + 2e-18f;  // for squares that underflowed
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

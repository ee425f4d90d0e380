// Attention of a single query, which memory bounds, not arithmetic. Lanes are channels for the
// products, so that rows are read in their order in memory, and keys for the softmax.
//
// The walk goes from the last block back, and within a block from the last vector back. The
// hardware prefetcher then sees one descending stream of keys and one of values. Ascending order
// within blocks breaks the stream at every block, and reads half as fast.
#include "kernels/decode.h"

#include "kernels/bias_functors.h"
#include "kernels/certificate.h"
#include "kernels/constants.h"
#include "kernels/elements.h"
#include "kernels/exp2.h"
#include "kernels/key_list.h"
#include "kernels/softmax.h"
#include "kernels/transpose.h"
#include "kernels/words.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {
namespace {

// One pass over the values of a block sums this many vectors of channels.
constexpr int vectors_per_pass = 8;

// dtype: of keys and values.
template <DType dtype>
class Decoder {
 public:
  Decoder(const AttentionTile& tile, const DecodeTask& task, void* scratch)
      : tile_(tile),
        task_(task),
        query_(static_cast<float*>(scratch)),
        weights_(query_ + tile.head_dim) {
    for (int d = 0; d < tile.head_dim; ++d)
      query_[d] = element(tile.query, d, tile.dtype) * tile.scales[0] * log2_e;
    if (tile.skipping.norms != nullptr)
      centre_score_ = dot(query_, tile.skipping.centre, tile.head_dim);
  }

  void run(DecodePart* part) {
    const TileReach reach(tile_);
    Certificate certificate(tile_, query_norm());
    part->maximum = -infinity;
    part->sum = 0.0f;
    part->read = {};
    part->rest_dropped = false;
    for (int d = 0; d < tile_.head_dim; ++d) part->output[d] = 0.0f;
    double known = task_.log_sum;
    if (tile_.skipping.known_logsumexps != nullptr) {
      certificate.update(least_from_centre(known_log_sum(tile_, 0), centre_score_));
      known = larger(known, certificate.least_log_sum());
    }
    certificate.begin_with(known);
    for (std::int64_t b = task_.end_block - 1; b >= task_.first_block; --b) {
      if (reach.ends_before(tile_, b) || certificate.drops_back_from(b)) {
        part->rest_dropped = true;
        break;
      }
      if (!reach.sees(tile_, b) || certificate.try_drop(b)) continue;
      ++part->read.scored;
      const float maximum = score_block(b, reach);
      const double log_sum_so_far = certificate.least_log_sum() + centre_score_;
      if (certificate.try_drop_scored(greatest_excess<double>(maximum, log_sum_so_far))) continue;
      ++part->read.weighed;
      add_block(b, reach, maximum, part);
      if (certificate.possible())
        certificate.update(larger(known, least_from_centre(log_sum(*part), centre_score_)));
    }
    part->log_sum = certificate.least_log_sum();
  }

 private:
  static double log_sum(const DecodePart& part) {
    return part.sum > 0.0f ? part.maximum + __builtin_log2(static_cast<double>(part.sum))
                           : -__builtin_inf();
  }

  // A bound of the query's norm; 0 without skipping, which does not use it.
  double query_norm() const {
    double square = 0.0;
    if (tile_.skipping.norms == nullptr) return square;
    for (int d = 0; d < tile_.head_dim; ++d) square += static_cast<double>(query_[d]) * query_[d];
    return __builtin_sqrt(square) + underflowed_norm;
  }

  const char* row(const HeadRows& rows, std::int64_t key) const {
    return row_at(rows.data, rows.stride, index_of(tile_.keys, key), dtype);
  }

  // The scales of `lanes` rows from key c on; 0 behind the last of the `left` keys.
  f32v scales(const HeadRows& rows, std::int64_t c, int left) const {
    if (tile_.keys.indices == nullptr && left >= lanes) return load<f32v>(rows.scales + c);
    f32v scales = {};
    for (int lane = 0; lane < lanes && lane < left; ++lane)
      scales[lane] = rows.scales[index_of(tile_.keys, c + lane)];
    return scales;
  }

  // Writes the scores of a block to weights_, -infinity after its last key, and returns the
  // greatest.
  float score_block(std::int64_t b, const TileReach& reach) {
    const std::int64_t begin = b * keys_per_block;
    const int count = reach.keys_to_read(tile_, begin);
    const std::uint64_t word = tile_.mask.words ? tile_.mask.words[b] : ~std::uint64_t{0};
    f32v maximum = broadcast(-infinity);
    for (int c = keys_per_block - lanes; c >= 0; c -= lanes) {
      constexpr std::uint32_t all = (std::uint64_t{1} << lanes) - 1;
      const std::uint32_t shown = static_cast<std::uint32_t>(word >> c) & all;
      f32v score = broadcast(-infinity);
      if (c < count && shown != 0)
        score = biased(products(begin + c, count - c), begin + c, count - c);
      if (shown != all) score = shown_to(shown) ? score : broadcast(-infinity);
      store(weights_ + c, score);
      maximum = max(maximum, score);
    }
    return greatest_lane(maximum);
  }

  // Turns scores into weights and adds the values.
  void add_block(std::int64_t b, const TileReach& reach, float maximum, DecodePart* part) {
    const std::int64_t begin = b * keys_per_block;
    const int count = reach.keys_to_read(tile_, begin);
    const float before = part->maximum;
    if (!(maximum <= before)) part->maximum = maximum;
    const float reached = origin_of_scores(part->maximum);
    const float rescale = exp2(broadcast(before - reached))[0];
    f32v sum = {};
    for (int c = 0; c < keys_per_block; c += lanes) {
      const f32v weight = exp2(load<f32v>(weights_ + c) - broadcast(reached));
      store(weights_ + c, c < count ? of_stored_values(weight, begin + c, count - c) : weight);
      sum += weight;
    }
    const float block_sum = horizontal_sum(sum);
    if (block_sum == 0.0f) return;  // all are masked, or too far to matter in float32
    part->sum = part->sum * rescale + block_sum;
    int d = 0;
    for (; d + lanes <= tile_.head_dim; d += vectors_per_pass * lanes)
      add_values(begin, count, d, rescale, part->output);
    for (d = tile_.head_dim / lanes * lanes; d < tile_.head_dim; ++d) {
      float channel = 0.0f;
      for (int c = 0; c < count; ++c)
        if (weights_[c] != 0.0f)
          channel += weights_[c] * element(row(tile_.value, begin + c), d, dtype);
      part->output[d] = part->output[d] * rescale + channel;
    }
  }

  // The factors of stored values: weights, times the scales of int8. A key of weight 0 may be
  // masked: its scale may be NaN.
  f32v of_stored_values(f32v weight, std::int64_t c, int left) const {
    if (dtype != DType::int8) return weight;
    return weight == 0.0f ? weight : weight * scales(tile_.value, c, left);
  }

  // Dot products of `lanes` keys from key c on; 0 behind the last of the `left` keys.
  f32v products(std::int64_t c, int left) const {
    const int vectors = tile_.head_dim / lanes;
    f32v dots = vectors == 4   ? whole_vectors<4>(c, left, 4)
                : vectors == 8 ? whole_vectors<8>(c, left, 8)
                               : whole_vectors<0>(c, left, vectors);
    if (vectors * lanes < tile_.head_dim) {
      f32v rest = {};
      for (int u = 0; u < lanes && u < left; ++u)
        for (int d = tile_.head_dim - 1; d >= vectors * lanes; --d)
          rest[u] += query_[d] * element(row(tile_.key, c + u), d, dtype);
      dots += rest;
    }
    return dtype == DType::int8 ? dots * scales(tile_.key, c, left) : dots;
  }

  // The products over the channels that fill whole vectors, a number known at compile time unless
  // Vectors is 0.
  template <int Vectors>
  f32v whole_vectors(std::int64_t c, int left, int vectors) const {
    f32v sums[lanes];
    NTK_ALIBI_UNROLL
    for (int u = lanes - 1; u >= 0; --u) {
      sums[u] = f32v{};
      if (u >= left) continue;
      const char* key = row(tile_.key, c + u);
      f32v sum = {};
      for (int v = (Vectors ? Vectors : vectors) - 1; v >= 0; --v)
        sum += load<f32v>(query_ + v * lanes) * elements(key, v * lanes, dtype);
      sums[u] = sum;
    }
    return sums_of_lanes(sums);
  }

  // Whether each lane's bit is set.
  static i32v shown_to(std::uint32_t bits) {
    i32v bit_of_lane;
    for (int lane = 0; lane < lanes; ++lane) bit_of_lane[lane] = 1 << lane;
    return (broadcast(static_cast<std::int32_t>(bits)) & bit_of_lane) != 0;
  }

  // Scores of `lanes` keys from key c on; -infinity where masked, or beyond the `left` keys.
  f32v biased(f32v products, std::int64_t c, int left) const {
    i32v position = broadcast(static_cast<std::int32_t>(c)) + iota();
    if (tile_.keys.positions != nullptr)
      for (int lane = 0; lane < lanes; ++lane)
        position[lane] = lane < left ? tile_.keys.positions[c + lane] : 0;
    const i32v distance = broadcast(tile_.query_positions[0]) - position;
    const i32v sunk = position < broadcast(tile_.mask.sink_ends[0]);
    const i32v visible = (distance >= broadcast(tile_.mask.least_distances[0])) &
                         ((distance <= broadcast(tile_.mask.greatest_distances[0])) | sunk) &
                         (iota() < broadcast(static_cast<std::int32_t>(left)));
    f32v score = products;
    const TileBias& bias = tile_.bias;
    if (bias.kind == BiasKind::table) {
      score = TableBias(tile_, {}).at(products, c, 0, distance);
    } else if (bias.kind != BiasKind::none) {
      const i32v from_origin = broadcast(bias.origins[0]) - position;
      const f32v slope = from_origin > 0 ? broadcast(bias.left_slopes[0] * log2_e)
                                         : broadcast(-bias.right_slopes[0] * log2_e);
      score = minus_product(score, slope, to_float(from_origin));
    }
    return visible ? score : broadcast(-infinity);
  }

  // Adds up to vectors_per_pass vectors of channels from d on. Keys of weight 0 are not read: most
  // of them are masked.
  void add_values(std::int64_t begin, int count, int d, float rescale, float* output) const {
    const int left = (tile_.head_dim - d) / lanes;
    if (left >= vectors_per_pass)
      return add_vectors<vectors_per_pass>(begin, count, d, rescale, output);
    int at = d;
    if (left & 4) add_vectors<4>(begin, count, at, rescale, output), at += 4 * lanes;
    if (left & 2) add_vectors<2>(begin, count, at, rescale, output), at += 2 * lanes;
    if (left & 1) add_vectors<1>(begin, count, at, rescale, output);
  }

  template <int Vectors>
  void add_vectors(std::int64_t begin, int count, int d, float rescale, float* output) const {
    f32v sum[Vectors] = {};
    for (int c = count - 1; c >= 0; --c) {
      if (weights_[c] == 0.0f) continue;
      const f32v weight = broadcast(weights_[c]);
      const char* value = row(tile_.value, begin + c);
      for (int v = Vectors - 1; v >= 0; --v)
        sum[v] += weight * elements(value, d + v * lanes, dtype);
    }
    for (int v = 0; v < Vectors; ++v) {
      float* at = output + d + v * lanes;
      store(at, load<f32v>(at) * broadcast(rescale) + sum[v]);
    }
  }

  const AttentionTile& tile_;
  const DecodeTask& task_;
  float* query_;    // [head_dim], times scale log2 e
  float* weights_;  // [keys_per_block]
  double centre_score_ = 0.0;
};

}  // namespace

std::int64_t decode_scratch_bytes(int head_dim) { return 4 * (head_dim + keys_per_block); }

void decode_part(const AttentionTile& tile, const DecodeTask& task, void* scratch,
                 DecodePart* part) {
  switch (tile.key.dtype) {
    case DType::float32: return Decoder<DType::float32>(tile, task, scratch).run(part);
    case DType::bfloat16: return Decoder<DType::bfloat16>(tile, task, scratch).run(part);
    case DType::float16: return Decoder<DType::float16>(tile, task, scratch).run(part);
    case DType::int8: return Decoder<DType::int8>(tile, task, scratch).run(part);
  }
}

void merge_parts(const AttentionTile& tile, const DecodePart* parts, std::int64_t count,
                 void* scratch) {
  float* output = static_cast<float*>(scratch);
  float maximum = -infinity;
  for (std::int64_t p = 0; p < count; ++p)
    maximum = parts[p].maximum < maximum ? maximum : parts[p].maximum;
  float sum = 0.0f;
  for (int d = 0; d < tile.head_dim; ++d) output[d] = 0.0f;
  for (std::int64_t p = 0; p < count; ++p) {
    if (parts[p].sum == 0.0f) continue;
    const float share = exp2(broadcast(parts[p].maximum - maximum))[0];
    sum += parts[p].sum * share;
    for (int d = 0; d < tile.head_dim; ++d) output[d] += parts[p].output[d] * share;
  }
  const float inverse = inverse_of_sum(sum);
  for (int d = 0; d < tile.head_dim; ++d) output[d] *= inverse;
  write_row(output, tile.head_dim, tile.dtype, static_cast<char*>(tile.output));
  write_sum(tile, 0, maximum, sum);
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

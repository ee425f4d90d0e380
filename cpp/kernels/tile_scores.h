// Scores of a tile with a block of keys, and the inputs of the certificate. Attention and its
// gradients share them.
#pragma once

#include "kernels/bias_functors.h"
#include "kernels/certificate.h"
#if defined(NTK_ALIBI_AMX)
#include "kernels/matrix_registers.h"
#endif
#include "kernels/products.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

// to[r] = from[r] for the tile's queries; the other lanes, up to `queries`, repeat the last query.
template <class T>
void load_row(const AttentionTile& tile, const T* from, int queries, T* to) {
  std::memcpy(to, from, sizeof(T) * tile.query_count);
  for (int r = tile.query_count; r < queries; ++r) to[r] = from[tile.query_count - 1];
}

// As load_row, times log2 e.
inline void load_in_log2(const AttentionTile& tile, const float* from, int queries, float* to) {
  load_row(tile, from, queries, to);
  for (int r = 0; r < queries; r += lanes) store(to + r, load<f32v>(to + r) * log2_e);
}

// Loads the rows that hold one number for each of `queries` queries: positions, masks, scales,
// slopes.
inline void load_tile_rows(const AttentionTile& tile, const Scratch& s,
                           int queries = queries_per_tile) {
  const std::int32_t* rows[] = {tile.query_positions, tile.mask.least_distances,
                                tile.mask.greatest_distances, tile.mask.sink_ends,
                                tile.bias.origins};
  for (int i = 0; i < 5; ++i) load_row(tile, rows[i], queries, s.ints + i * queries_per_tile);
  load_in_log2(tile, tile.scales, queries, s.scales);
  if (tile.bias.left_slopes == nullptr) return;
  load_in_log2(tile, tile.bias.left_slopes, queries, lane_row(s.slopes, 0));
  load_in_log2(tile, tile.bias.right_slopes, queries, lane_row(s.slopes, 1));
}

// True if the walk must end at block b. Not every block asks.
template <class Words>
bool must_end(const AttentionTile& tile, std::int64_t b) {
  if (b % 16 != 0) return false;
  const bool stop = tile.stop.requested(tile.stop.context);
#if defined(NTK_ALIBI_AMX)
  // A signal handler of Python's may have used the registers.
  if (Words::in_matrices) MatrixRegisters::configure();
#endif
  return stop;
}

// A block with scores that are not yet exponentiated.
struct ScoredBlock {
  float* scores = nullptr;
  std::int64_t number = 0;
  int count = 0;
  KeyRange unmasked = {0, 0};  // neither a distance nor a bias of -infinity hides these keys
  bool mixed = false;          // the mask's words hide keys

  bool masked() const { return mixed || !unmasked.holds(0, count); }
};

// Loads the words of block b for `queries` queries if they hide keys, and returns whether they do.
inline bool load_bits(const AttentionTile& tile, const Scratch& s, std::int64_t b,
                      int queries = queries_per_tile) {
  if (shown_by_words(tile, b) == shown_to_all) return false;
  for (int r = 0; r < queries; ++r) {
    const int i = r < tile.query_count ? r : tile.query_count - 1;
    const std::uint64_t word = tile.mask.words[i * tile.mask.words_stride + b];
    s.bits[r] = static_cast<std::int32_t>(word);
    s.bits[queries_per_tile + r] = static_cast<std::int32_t>(word >> 32);
  }
  return true;
}

// Whether the loaded words show key c of the block to a vector of queries.
NTK_ALIBI_INLINE i32v shows(const Scratch& s, int c, int v) {
  const i32v words = load<i32v>(s.bits + c / 32 * queries_per_tile + v * lanes);
  return (words & broadcast(static_cast<std::int32_t>(1u << c % 32))) != 0;
}

// Where the biases of the queries begin: one position for each.
inline const std::int32_t* bias_origins(const Scratch& s) { return s.ints + 4 * queries_per_tile; }

// True if neighbouring queries read neighbouring entries of the table for each of the first `count`
// keys of block b, and none of these entries hides its key.
inline bool plain_runs(const AttentionTile& tile, const Scratch& s, std::int64_t b, int count) {
  constexpr float greatest = 2e38f;             // finite in units of log 2, too
  constexpr std::int64_t most_exact = 1 << 24;  // distances as float
  const std::int32_t* const origins = bias_origins(s);
  const std::int64_t least = origins[0] - (b * keys_per_block + count - 1);
  const std::int64_t first = least - tile.bias.table_begin;
  const int entries = queries_per_tile + count - 1;
  if (tile.keys.positions != nullptr || first < 0 || first + entries > tile.bias.table_size ||
      least < -most_exact || least + entries > most_exact)
    return false;
  i32v differs = {};
  for (int r = 0; r < queries_per_tile; r += lanes)
    differs |= load<i32v>(origins + r) != broadcast(origins[0] + r) + iota();
  for (int i = 0; i < entries; i += lanes) {
    const int at = i + lanes <= entries ? i : entries - lanes;
    differs |= ~(magnitude(load<f32v>(tile.bias.table + first + at)) <= greatest);
  }
  return !any(differs);
}

// The keys of block b that neither a distance nor a bias of -infinity hides, of which `count` are
// read.
inline KeyRange unmasked_keys(const AttentionTile& tile, const Scratch& s, const TileReach& reach,
                              std::int64_t b, int count) {
  bool plain = tile.bias.kind == BiasKind::table && plain_runs(tile, s, b, count);
  with_functor(tile.bias.kind, [&](auto functor) { plain |= decltype(functor)::type::is_linear; });
  return plain ? reach.seen_by_all(tile, b) : KeyRange{0, 0};
}

template <class Bias>
NTK_ALIBI_INLINE f32v score_of(const Bias& bias, f32v product, std::int64_t key, int v,
                               i32v from_origin) {
  if constexpr (Bias::is_linear)
    return bias.at(product, v, to_float(from_origin));
  else
    return bias.at(product, key, v, from_origin);
}

// The score of a key with one vector of queries, from their products; -infinity where it is masked.
// `mixed`: of its block.
template <class Bias>
NTK_ALIBI_INLINE f32v masked_score(const AttentionTile& tile, const Scratch& s, const Bias& bias,
                                   f32v product, std::int64_t key, int v, bool mixed) {
  const std::int32_t key_position = position_of(tile.keys, key);
  const i32v distance = load<i32v>(s.ints + v * lanes) - broadcast(key_position);
  const i32v least = load<i32v>(s.ints + queries_per_tile + v * lanes);
  const i32v most = load<i32v>(s.ints + 2 * queries_per_tile + v * lanes);
  const i32v sunk = load<i32v>(s.ints + 3 * queries_per_tile + v * lanes) > key_position;
  i32v visible = (distance >= least) & ((distance <= most) | sunk);
  if (mixed) visible &= shows(s, static_cast<int>(key % keys_per_block), v);
  const i32v from_origin = load<i32v>(bias_origins(s) + v * lanes) - broadcast(key_position);
  return visible ? score_of(bias, product, key, v, from_origin) : broadcast(-infinity);
}

// Turns the stored products of rows_per_step keys into biased and masked scores.
template <class Bias>
void mask_scores(const AttentionTile& tile, const Scratch& s, const Bias& bias,
                 const ScoredBlock& block, int c) {
  for (int u = c; u < c + rows_per_step; ++u) {
    // Rows that fill up the last step are masked.
    const bool real = u < block.count;
    for (int v = 0; v < vectors_per_tile; ++v)
      store_vector(block.scores, u, v,
                   real ? masked_score(tile, s, bias, vector_of(block.scores, u, v),
                                       block.number * keys_per_block + u, v, block.mixed)
                        : broadcast(-infinity));
  }
}

// Stores the scores of rows_per_step keys, made of their products, and raises `greatest` to them.
// They stay in registers where no key is masked.
template <class Words, class Bias>
NTK_ALIBI_INLINE void store_scores(const AttentionTile& tile, const Scratch& s, const Bias& bias,
                                   f32v (&dot)[rows_per_step][vectors_per_tile],
                                   const ScoredBlock& block, int c,
                                   f32v (&greatest)[vectors_per_tile]) {
  const bool masked =
      c + rows_per_step > block.count || !block.unmasked.holds(c, c + rows_per_step);
  float* const scores = lane_row(block.scores, c);
  NTK_ALIBI_UNROLL
  for (int u = 0; u < rows_per_step; ++u) {
    NTK_ALIBI_UNROLL
    for (int v = 0; v < vectors_per_tile; ++v) {
      if (!Words::queries_have_scale) dot[u][v] *= vector_of(s.scales, 0, v);
      if (masked) store_vector(scores, u, v, dot[u][v]);
    }
  }
  if (masked) {
    mask_scores(tile, s, bias, block, c);
    for (int u = 0; u < rows_per_step; ++u)
      for (int v = 0; v < vectors_per_tile; ++v)
        greatest[v] = max(greatest[v], vector_of(scores, u, v));
    return;
  }
  const std::int32_t* const origins = bias_origins(s);
  const std::int64_t first = block.number * keys_per_block + c;
  const auto keep = [&](int u, int v, f32v score) {
    dot[u][v] = score;
    store_vector(scores, u, v, score);
  };
  if constexpr (!Bias::depends_on_distance) {
    return;  // all its keys count as masked
  } else if (tile.keys.positions == nullptr) {
    f32v from_origin[vectors_per_tile];
    for (int v = 0; v < vectors_per_tile; ++v)
      from_origin[v] =
          to_float(load<i32v>(origins + v * lanes) - broadcast(static_cast<std::int32_t>(first)));
    NTK_ALIBI_UNROLL
    for (int u = 0; u < rows_per_step; ++u) {
      NTK_ALIBI_UNROLL
      for (int v = 0; v < vectors_per_tile; ++v)
        keep(u, v, bias.at(dot[u][v], v, from_origin[v] - static_cast<float>(u)));
    }
  } else {
    NTK_ALIBI_UNROLL
    for (int u = 0; u < rows_per_step; ++u) {
      const i32v key_position = broadcast(tile.keys.positions[first + u]);
      NTK_ALIBI_UNROLL
      for (int v = 0; v < vectors_per_tile; ++v)
        keep(u, v, bias.at(dot[u][v], v, to_float(load<i32v>(origins + v * lanes) - key_position)));
    }
  }
  if (block.mixed) {
    NTK_ALIBI_UNROLL
    for (int u = 0; u < rows_per_step; ++u) {
      NTK_ALIBI_UNROLL
      for (int v = 0; v < vectors_per_tile; ++v)
        keep(u, v, shows(s, c + u, v) ? dot[u][v] : broadcast(-infinity));
    }
  }
  // By halves: a chain over all keys would take as long as their products.
  NTK_ALIBI_UNROLL
  for (int half = rows_per_step / 2; half > 0; half /= 2) NTK_ALIBI_UNROLL
  for (int u = 0; u < half; ++u) NTK_ALIBI_UNROLL
  for (int v = 0; v < vectors_per_tile; ++v) dot[u][v] = max(dot[u][v], dot[u + half][v]);
  for (int v = 0; v < vectors_per_tile; ++v) greatest[v] = max(greatest[v], dot[0][v]);
}

// The keys of a block that are scored and weighed, of which those behind the last one are masked.
template <class Words>
constexpr int keys_to_weigh(int count) {
  constexpr int step = Words::in_matrices ? 32 : 1;
  return (count + step - 1) / step * step;
}

// Turns the products of a block into scores, whose maximum it stores.
template <class Words, class Bias>
void score_products(const AttentionTile& tile, const Scratch& s, const ScoredBlock& block) {
  const Bias bias(tile, s);
  f32v greatest[vectors_per_tile];
  for (int v = 0; v < vectors_per_tile; ++v) greatest[v] = broadcast(-infinity);
  for (int c = 0; c < keys_to_weigh<Words>(block.count); c += rows_per_step) {
    f32v dot[rows_per_step][vectors_per_tile];
    for (int u = 0; u < rows_per_step; ++u)
      for (int v = 0; v < vectors_per_tile; ++v) dot[u][v] = vector_of(block.scores, c + u, v);
    store_scores<Words>(tile, s, bias, dot, block, c, greatest);
  }
  for (int v = 0; v < vectors_per_tile; ++v) store_vector(s.block_maximum, 0, v, greatest[v]);
}

// A bound of the norms of the tile's queries, times their scales; 0 without skipping, which does
// not use it.
template <class Words>
double greatest_query_norm(const AttentionTile& tile, const Scratch& s) {
  if (tile.skipping.norms == nullptr) return 0.0;
  double greatest = 0.0;
  for (int v = 0; v < vectors_per_tile; ++v) {
    f32v square = {};
    for (int d = 0; d < tile.head_dim / Words::channels_per_word; ++d)
      square = Words::multiply_add(square, vector_of(s.query, d, v), vector_of(s.query, d, v));
    for (int lane = 0; lane < lanes; ++lane) {
      const double scale = Words::queries_have_scale ? 1.0 : s.scales[v * lanes + lane];
      const double scaled = square[lane] * scale * scale;
      greatest = scaled == scaled ? larger(greatest, scaled) : infinity;
    }
  }
  const double greatest_scale = Words::queries_have_scale ? 1.0 : tile.greatest_scale * log2_e;
  return __builtin_sqrt(greatest) + underflowed_norm * greatest_scale;
}

// Forms the score of the centre for each query, if the tile has a centre.
template <class Words>
void score_centre(const AttentionTile& tile, const Scratch& s) {
  if (tile.skipping.norms == nullptr) return;
  for (int v = 0; v < vectors_per_tile; ++v) {
    const f32v scale = Words::queries_have_scale ? broadcast(1.0f) : vector_of(s.scales, 0, v);
    f32v score = {};
    for (int d = 0; d < tile.head_dim; ++d)
      score += Words::channel(vector_of(s.query, d / Words::channels_per_word, v),
                              d % Words::channels_per_word) *
               broadcast(tile.skipping.centre[d]);
    store_vector(s.centre_score, 0, v, score * scale);
  }
}

// A lower bound, over the queries, of the log sum so far less the score of the centre.
inline double least_log_sum(const Scratch& s) {
  f32v least = broadcast(infinity);
  for (int v = 0; v < vectors_per_tile; ++v) {
    const f32v sum = vector_of(s.log_sum, 0, v);
    f32v bound = least_from_centre(sum, vector_of(s.centre_score, 0, v));
    bound = bound == bound ? bound : broadcast(-infinity);  // NaN after an overflow
    bound = sum == infinity ? sum : bound;                  // it bounds nothing else
    least = bound < least ? bound : least;
  }
  double minimum = infinity;
  for (int lane = 0; lane < lanes; ++lane) minimum = smaller(minimum, least[lane]);
  return minimum;
}

// An upper bound, over the queries, of the block's greatest score less the log sum so far. Lanes
// without a query have a log sum of infinity.
inline double greatest_excess(const Scratch& s) {
  f32v greatest = broadcast(-infinity);
  for (int v = 0; v < vectors_per_tile; ++v) {
    const f32v excess =
        greatest_excess(vector_of(s.block_maximum, 0, v), vector_of(s.log_sum, 0, v));
    greatest = max(greatest, excess == excess ? excess : broadcast(infinity));
  }
  return greatest_lane(greatest);
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

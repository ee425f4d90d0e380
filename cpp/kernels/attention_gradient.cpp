// Gradients of one tile of queries. Weights are recomputed from the scores and the logsumexp, so
// that no matrix of all pairs is stored.
//
// Lanes are queries for the scores, for do.v and for the gradient of the queries, as in the forward
// pass; they are channels for the gradients of keys and values, which are sums over queries.
#include "kernels/attention_gradient.h"

#include "kernels/dropout.h"
#include "kernels/exp2.h"
#include "kernels/tile_scores.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {
namespace {

// The vectors of channels that a step of the sums over queries works on. Rows are padded to a
// multiple of them: a single vector has too few sums to keep the units busy.
constexpr int vectors_per_step = vectors_per_tile < 4 ? 2 : 4;

constexpr int padded(int head_dim) {
  return (head_dim + gradient_padding - 1) / gradient_padding * gradient_padding;
}

struct GradientScratch {
  Scratch tile;  // scores[0]: p of kept weights, scores[1]: ds; log_sum: the logsumexp, log2 domain
  RowScratch rows;
  float* output_gradient;  // [head_dim][queries_per_tile], times the factor of dropout
  float* correction;       // [1][queries_per_tile]: do.o - dlse
  // [queries_per_tile][padded head_dim]
  float* query_rows;            // times the scales
  float* output_gradient_rows;  // times the factor of dropout
};

GradientScratch divide(Pieces& pieces, int head_dim) {
  GradientScratch s;
  s.tile = pieces.tile(head_dim);
  s.rows = pieces.rows(head_dim, 1);
  s.output_gradient = pieces.take(head_dim * tile_row());
  s.correction = pieces.take(tile_row());
  s.query_rows = pieces.take(queries_per_tile * static_cast<std::int64_t>(padded(head_dim)));
  s.output_gradient_rows =
      pieces.take(queries_per_tile * static_cast<std::int64_t>(padded(head_dim)));
  return s;
}

// Copies rows as float32, padded with zeros. Lanes without a query repeat the last one.
void copy_rows(const AttentionTile& tile, const void* from, std::int64_t stride, float* to) {
  const int width = padded(tile.head_dim);
  for (int r = 0; r < queries_per_tile; ++r) {
    const int i = r < tile.query_count ? r : tile.query_count - 1;
    float* row = to + static_cast<std::int64_t>(r) * width;
    const float* source =
        as_float32(row_at(from, stride, i, tile.dtype), tile.head_dim, tile.dtype, row);
    if (source != row) __builtin_memcpy(row, source, tile.head_dim * sizeof(float));
    for (int d = tile.head_dim; d < width; ++d) row[d] = 0.0f;
  }
}

void pack(const AttentionTile& tile, const float* padded_rows, const float* scales, float* packed) {
  const char* rows[queries_per_tile];
  for (int r = 0; r < queries_per_tile; ++r)
    rows[r] = reinterpret_cast<const char*>(padded_rows +
                                            static_cast<std::int64_t>(r) * padded(tile.head_dim));
  pack_rows<Float32Words>(rows, tile.head_dim, scales, packed);
}

void scale_row(const AttentionTile& tile, int r, float factor, float* padded_rows) {
  const int width = padded(tile.head_dim);
  for (int d = 0; d < width; ++d) padded_rows[static_cast<std::int64_t>(r) * width + d] *= factor;
}

// A query that sees nothing has no gradients, whatever a padded row holds: a weight of 0 times NaN
// would be NaN.
void clear_row(const AttentionTile& tile, int r, const GradientScratch& s) {
  const int width = padded(tile.head_dim);
  for (int d = 0; d < width; ++d) {
    s.query_rows[static_cast<std::int64_t>(r) * width + d] = 0.0f;
    s.output_gradient_rows[static_cast<std::int64_t>(r) * width + d] = 0.0f;
  }
}

void load_gradient(const GradientTile& gradient, const GradientScratch& s) {
  const AttentionTile& tile = *gradient.tile;
  copy_rows(tile, tile.query, tile.query_stride, s.query_rows);
  copy_rows(tile, gradient.output_gradient, gradient.output_gradient_stride,
            s.output_gradient_rows);
  for (int r = 0; r < tile.query_count; ++r)
    if (tile.logsumexp[r] == -infinity) clear_row(tile, r, s);
  load_tile_rows(tile, s.tile);
  for (int r = 0; r < queries_per_tile; ++r) s.tile.rescale[r] = 1.0f;
  pack(tile, s.query_rows, s.tile.scales, s.tile.query);
  for (int r = 0; r < queries_per_tile; ++r) {
    const bool real = r < tile.query_count && tile.logsumexp[r] != -infinity;
    // With a log sum of infinity, all weights of a lane without a query or a visible key are 0.
    s.tile.log_sum[r] =
        real ? static_cast<float>((tile.logsumexp[r] - tile.bias.shifts[r]) * log2_e_double)
             : infinity;
    s.correction[r] = 0.0f;
    if (!real) continue;
    const float* row =
        s.output_gradient_rows + static_cast<std::int64_t>(r) * padded(tile.head_dim);
    const char* output = row_at(tile.output, tile.output_stride, r, tile.dtype);
    double product = 0.0;
    for (int d = 0; d < tile.head_dim; ++d)
      product += static_cast<double>(row[d]) * element(output, d, tile.dtype);
    if (gradient.logsumexp_gradient != nullptr) product -= gradient.logsumexp_gradient[r];
    s.correction[r] = static_cast<float>(product);
  }
  for (int r = 0; r < tile.query_count; ++r) {
    scale_row(tile, r, tile.scales[r], s.query_rows);
    if (drops(tile)) scale_row(tile, r, tile.dropout.factor, s.output_gradient_rows);
  }
  pack(tile, s.output_gradient_rows, s.tile.rescale, s.output_gradient);
  for (std::int64_t i = 0; i < tile.head_dim * tile_row(); ++i) s.tile.output[i] = 0.0f;
}

// gradient[c .. c + rows_per_step)[d ...] += sum_q weights[c][q] rows[q][d].
template <int Vectors>
void add_over_queries_at(const float* weights, const float* rows, int queries, int width, int c,
                         int d, float* gradient) {
  f32v sum[rows_per_step][Vectors] = {};
  for (int q = 0; q < queries; ++q) {
    f32v row[Vectors];
    for (int v = 0; v < Vectors; ++v)
      row[v] = load<f32v>(rows + static_cast<std::int64_t>(q) * width + d + v * lanes);
    for (int u = 0; u < rows_per_step; ++u) {
      const f32v weight = broadcast(weights[(c + u) * tile_row() + q]);
      for (int v = 0; v < Vectors; ++v) sum[u][v] += weight * row[v];
    }
  }
  NTK_ALIBI_UNROLL
  for (int u = 0; u < rows_per_step; ++u) NTK_ALIBI_UNROLL
  for (int v = 0; v < Vectors; ++v) {
    float* at = gradient + static_cast<std::int64_t>(c + u) * width + d + v * lanes;
    store(at, load<f32v>(at) + sum[u][v]);
  }
}

void add_over_queries(const float* weights, const float* rows, int queries, int width, int count,
                      float* gradient) {
  for (int c = 0; c < count; c += rows_per_step) {
    int d = 0;
    for (; d + vectors_per_step * lanes <= width; d += vectors_per_step * lanes)
      add_over_queries_at<vectors_per_step>(weights, rows, queries, width, c, d, gradient);
    for (; d < width; d += lanes)
      add_over_queries_at<1>(weights, rows, queries, width, c, d, gradient);
  }
}

class GradientWalk {
 public:
  GradientWalk(const GradientTile& gradient, const GradientScratch& s)
      : gradient_(gradient),
        tile_(*gradient.tile),
        s_(s),
        rows_(tile_, s.rows),
        reach_(tile_),
        kept_(tile_),
        certificate_(tile_, greatest_query_norm<Float32Words>(tile_, s.tile)) {
    if (!certificate_.possible()) return;
    // The forward pass gave the sum, so the certificate holds from the first block on.
    score_centre<Float32Words>(tile_, s.tile);
    const double least = least_log_sum(s.tile);
    if (least < infinity) certificate_.update(least);
  }

  void run() {
    for (int v = 0; v < vectors_per_tile; ++v) {
      query_sums_[v] = f32v{};
      for (auto& sums : slopes_) sums[v] = f32v{};
    }
    const std::int64_t middle = reach_.last_block_behind(tile_);
    for (std::int64_t b = smaller_of(middle, gradient_.end_block - 1); b >= gradient_.first_block;
         --b) {
      if (must_stop(b) || reach_.ends_before(tile_, b) || certificate_.drops_back_from(b)) break;
      visit(b);
    }
    for (std::int64_t b = middle + 1 < gradient_.first_block ? gradient_.first_block : middle + 1;
         b < gradient_.end_block; ++b) {
      if (must_stop(b) || reach_.ends_behind(tile_, b) || certificate_.drops_ahead_from(b)) break;
      visit(b);
    }
    write();
  }

 private:
  bool must_stop(std::int64_t b) const {
    return asks_to_stop(b) && tile_.stop.requested(tile_.stop.context);
  }
  static std::int64_t smaller_of(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

  void visit(std::int64_t b) {
    if (!reach_.sees(block_of(tile_.keys, b)) || certificate_.try_drop(b)) return;
    const ScoredBlock block{s_.tile.scores[0], b, reach_.keys_to_read(tile_, b * keys_per_block),
                            unmasked_keys(tile_, reach_, b)};
    with_functor(tile_.bias.kind,
                 [&](auto functor) { score<typename decltype(functor)::type>(block); });
    if (certificate_.possible() && certificate_.try_drop_scored(greatest_excess(s_.tile))) return;
    drops(tile_) ? differentiate<true>(block) : differentiate<false>(block);
    const int width = padded(tile_.head_dim);
    const std::int64_t offset = (b - gradient_.first_block) * keys_per_block * width;
    add_over_queries(s_.tile.scores[0], s_.output_gradient_rows, tile_.query_count, width,
                     block.count, gradient_.value_gradient + offset);
    add_over_queries(s_.tile.scores[1], s_.query_rows, tile_.query_count, width, block.count,
                     gradient_.key_gradient + offset);
    const Rows& keys = rows_.keys(b);
    if (block.masked() && !rows_.keys_are_finite(b))
      add_rows<Float32Words, true>(s_.tile, s_.tile.scores[1], keys, block.count, tile_.head_dim);
    else
      add_rows<Float32Words, false>(s_.tile, s_.tile.scores[1], keys, block.count, tile_.head_dim);
    add_bias_gradients(block);
  }

  // Not inlined: visit() is slower with the loops of all biases in it.
  template <class Bias>
  __attribute__((noinline)) void score(const ScoredBlock& block) {
    const Bias bias(tile_, s_.tile);
    const Rows& keys = rows_.keys(block.number);
    f32v greatest[vectors_per_tile];
    for (int v = 0; v < vectors_per_tile; ++v) greatest[v] = broadcast(-infinity);
    for (int c = 0; c < block.count; c += rows_per_step) {
      f32v dot[rows_per_step][vectors_per_tile] = {};
      multiply<Float32Words>(s_.tile.query, keys + c, tile_.head_dim, dot, [](int) {});
      store_scores<Float32Words>(tile_, s_.tile, bias, dot, block, c, greatest);
    }
    for (int v = 0; v < vectors_per_tile; ++v)
      store_vector(s_.tile.block_maximum, 0, v, greatest[v]);
  }

  // Turns scores into weights p while it forms do.v, then sets ds = p (do.v - correction). do.v is
  // 0 for a dropped weight, which is 0 from then on.
  template <bool Drops>
  void differentiate(const ScoredBlock& block) {
    const Rows& values = rows_.values(block.number);
    f32v log_sum[vectors_per_tile], correction[vectors_per_tile];
    for (int v = 0; v < vectors_per_tile; ++v) {
      log_sum[v] = vector_of(s_.tile.log_sum, 0, v);
      correction[v] = vector_of(s_.correction, 0, v);
    }
    float* weights = s_.tile.scores[0];
    const auto weigh = [&](int c, int v) {
      store_vector(weights, c, v, exp2(vector_of(weights, c, v) - log_sum[v]));
    };
    const int end = (block.count + rows_per_step - 1) / rows_per_step * rows_per_step;
    for (int v = 0; !mixes_work<Float32Words> && v < vectors_per_tile; ++v)
      for (int c = 0; c < end; ++c) weigh(c, v);
    for (int c = 0; c < end; c += rows_per_step) {
      f32v dot[rows_per_step][vectors_per_tile] = {};
      multiply<Float32Words>(s_.output_gradient, values + c, tile_.head_dim, dot, [&](int u) {
        for (int v = 0; v < vectors_per_tile; ++v) weigh(c + u, v);
      });
      NTK_ALIBI_UNROLL
      for (int u = 0; u < rows_per_step; ++u) {
        if (Drops && c + u < block.count) kept_.move_to(key_of(block, c + u));
        NTK_ALIBI_UNROLL
        for (int v = 0; v < vectors_per_tile; ++v) {
          const f32v weight = vector_of(weights, c + u, v);
          f32v product = dot[u][v];
          if (Drops) {
            product = masked(product, kept_.mask(v));
            store_vector(weights, c + u, v, masked(weight, kept_.mask(v)));
          }
          f32v gradient = weight * (product - correction[v]);
          // do.v may be NaN for a masked key, or overflow for one without weight.
          gradient = weight == 0.0f ? f32v{} : gradient;
          store_vector(s_.tile.scores[1], c + u, v, gradient);
        }
      }
    }
  }

  void add_bias_gradients(const ScoredBlock& block) {
    bool slopes = false;
    for (const float* of_slopes : gradient_.slopes) slopes = slopes || of_slopes != nullptr;
    if (slopes) add_slopes(block);
    if (gradient_.query_sums != nullptr) add_sums(block);
    if (gradient_.table != nullptr) add_table(block);
    if (gradient_.dense != nullptr) write_dense(block);
  }

  std::int64_t key_of(const ScoredBlock& block, int c) const {
    return block.number * keys_per_block + c;
  }

  void add_slopes(const ScoredBlock& block) {
    const f32v knee = broadcast(tile_.bias.query_knee);
    for (int v = 0; v < vectors_per_tile; ++v) {
      const i32v position = load<i32v>(s_.tile.ints + v * lanes);
      f32v sums[slope_kinds] = {};
      for (int c = 0; c < block.count; ++c) {
        const i32v distance = position - broadcast(position_of(tile_.keys, key_of(block, c)));
        const f32v whole = magnitude(to_float(distance)), near = min(whole, knee);
        const f32v gradient = vector_of(s_.tile.scores[1], c, v);
        const f32v of_near = gradient * near, of_far = gradient * (whole - near);
        sums[0] -= distance > 0 ? of_near : f32v{};
        sums[1] -= distance < 0 ? of_near : f32v{};
        sums[2] -= distance > 0 ? of_far : f32v{};
        sums[3] -= distance < 0 ? of_far : f32v{};
      }
      for (int kind = 0; kind < slope_kinds; ++kind) slopes_[kind][v] += sums[kind];
    }
  }

  void add_sums(const ScoredBlock& block) {
    for (int c = 0; c < block.count; ++c) {
      double sum = 0.0;
      for (int v = 0; v < vectors_per_tile; ++v) {
        const f32v gradient = vector_of(s_.tile.scores[1], c, v);
        query_sums_[v] += gradient;
        for (int lane = 0; lane < lanes; ++lane) sum += gradient[lane];
      }
      gradient_.key_sums[index_of(tile_.keys, key_of(block, c))] -= sum;
    }
  }

  void add_table(const ScoredBlock& block) {
    for (int c = 0; c < block.count; ++c)
      for (int i = 0; i < tile_.query_count; ++i) {
        const std::int64_t distance = static_cast<std::int64_t>(tile_.query_positions[i]) -
                                      position_of(tile_.keys, key_of(block, c));
        const std::int64_t index = distance - tile_.bias.table_begin;
        if (index >= 0 && index < tile_.bias.table_size)
          gradient_.table[index] += s_.tile.scores[1][c * tile_row() + i];
      }
  }

  void write_dense(const ScoredBlock& block) {
    for (int c = 0; c < block.count; ++c) {
      const std::int64_t key = index_of(tile_.keys, key_of(block, c));
      for (int i = 0; i < tile_.query_count; ++i)
        gradient_.dense[i * gradient_.dense_query_stride + key * gradient_.dense_key_stride] =
            s_.tile.scores[1][c * tile_row() + i];
    }
  }

  void write() {
    for (int r = 0; r < queries_per_tile; ++r)
      s_.tile.rescale[r] = r < tile_.query_count ? tile_.scales[r] : 0.0f;
    write_lanes(s_.tile.output, s_.tile.rescale, tile_,
                {gradient_.query_gradient, gradient_.query_gradient_stride,
                 gradient_.query_gradient_dtype});
    for (int r = 0; r < tile_.query_count; ++r) {
      const int v = r / lanes, lane = r % lanes;
      for (int kind = 0; kind < slope_kinds; ++kind)
        if (gradient_.slopes[kind] != nullptr) gradient_.slopes[kind][r] = slopes_[kind][v][lane];
      if (gradient_.query_sums != nullptr) gradient_.query_sums[r] = query_sums_[v][lane];
    }
  }

  const GradientTile& gradient_;
  const AttentionTile& tile_;
  const GradientScratch& s_;
  BlockRows<Float32Words> rows_;
  const TileReach reach_;
  KeptWeights<vectors_per_tile> kept_;
  Certificate certificate_;
  f32v slopes_[slope_kinds][vectors_per_tile], query_sums_[vectors_per_tile];
};

}  // namespace

std::int64_t gradient_scratch_bytes(int head_dim) {
  Pieces pieces;
  divide(pieces, head_dim);
  return pieces.bytes();
}

void gradient_tile(const GradientTile& gradient, void* scratch) {
  Pieces pieces(scratch);
  const GradientScratch s = divide(pieces, gradient.tile->head_dim);
  s.rows.stored->key = nullptr;  // nothing is stored yet
  load_gradient(gradient, s);
  GradientWalk(gradient, s).run();
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

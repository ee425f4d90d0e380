// Gradients of one tile of queries. Weights are recomputed from the scores and the logsumexp, so
// that no matrix of all pairs is stored.
//
// Lanes are queries for the scores, for do.v and for the gradient of the queries, as in the forward
// pass; they are channels for the gradients of keys and values, which are sums over queries.
#include "kernels/attention_gradient.h"

#include "kernels/exp2.h"
#include "kernels/gradient_rows.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {
namespace {

// The vectors of channels that a step of the sums over queries works on. Rows are padded to a
// multiple of them: a single vector has too few sums to keep the units busy.
constexpr int vectors_per_step = vectors_per_tile < 4 ? 2 : 4;

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

template <class Words>
class GradientWalk {
 public:
  GradientWalk(const GradientTile& gradient, const GradientScratch& s)
      : gradient_(gradient),
        tile_(*gradient.tile),
        s_(s),
        rows_(tile_, s.rows),
        reach_(tile_),
        kept_(tile_),
        certificate_(tile_, greatest_query_norm<Words>(tile_, s.tile)) {
    if (!certificate_.possible()) return;
    // The forward pass gave the sum, so the certificate holds from the first block on.
    score_centre<Words>(tile_, s.tile);
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
      if (must_end<Words>(tile_, b) || reach_.ends_before(tile_, b) ||
          certificate_.drops_back_from(b))
        break;
      visit(b);
    }
    for (std::int64_t b = middle + 1 < gradient_.first_block ? gradient_.first_block : middle + 1;
         b < gradient_.end_block; ++b) {
      if (must_end<Words>(tile_, b) || reach_.ends_behind(tile_, b) ||
          certificate_.drops_ahead_from(b))
        break;
      visit(b);
    }
    write();
  }

 private:
  static std::int64_t smaller_of(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

  void visit(std::int64_t b) {
    if (!reach_.sees(tile_, b) || certificate_.try_drop(b)) return;
    const int count = reach_.keys_to_read(tile_, b * keys_per_block);
    const ScoredBlock block{s_.tile.scores[0], b, count,
                            unmasked_keys(tile_, s_.tile, reach_, b, count),
                            load_bits(tile_, s_.tile, b)};
    with_functor(tile_.bias.kind,
                 [&](auto functor) { score<typename decltype(functor)::type>(block); });
    if (certificate_.possible() && certificate_.try_drop_scored(greatest_excess(s_.tile))) return;
    drops(tile_) ? differentiate<true>(block) : differentiate<false>(block);
    add_products(block);
    add_bias_gradients(block);
  }

  // Not inlined: visit() is slower with the loops of all biases in it.
  template <class Bias>
  __attribute__((noinline)) void score(const ScoredBlock& block) {
#if defined(NTK_ALIBI_AMX)
    if constexpr (Words::in_matrices) {
      multiply_matrices(s_.tile.query, rows_.even_keys(block.number), tile_.head_dim, block.count,
                        block.scores);
      return score_products<Words, Bias>(tile_, s_.tile, block);
    }
#endif
    const Bias bias(tile_, s_.tile);
    const Rows& keys = rows_.keys(block.number);
    f32v greatest[vectors_per_tile];
    for (int v = 0; v < vectors_per_tile; ++v) greatest[v] = broadcast(-infinity);
    for (int c = 0; c < block.count; c += rows_per_step) {
      f32v dot[rows_per_step][vectors_per_tile] = {};
      multiply<Words>(s_.tile.query, keys + c, tile_.head_dim, dot, [](int) {});
      store_scores<Words>(tile_, s_.tile, bias, dot, block, c, greatest);
    }
    for (int v = 0; v < vectors_per_tile; ++v)
      store_vector(s_.tile.block_maximum, 0, v, greatest[v]);
  }

  // Turns scores into weights p while it forms do.v, then sets ds = p (do.v - correction).
  template <bool Drops>
  void differentiate(const ScoredBlock& block) {
#if defined(NTK_ALIBI_AMX)
    if constexpr (Words::in_matrices) return differentiate_products<Drops>(block);
#endif
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
    for (int v = 0; !mixes_work<Words> && v < vectors_per_tile; ++v)
      for (int c = 0; c < end; ++c) weigh(c, v);
    for (int c = 0; c < end; c += rows_per_step) {
      f32v dot[rows_per_step][vectors_per_tile] = {};
      multiply<Words>(s_.output_gradient, values + c, tile_.head_dim, dot, [&](int u) {
        for (int v = 0; v < vectors_per_tile; ++v) weigh(c + u, v);
      });
      NTK_ALIBI_UNROLL
      for (int u = 0; u < rows_per_step; ++u) {
        if (Drops && c + u < block.count) kept_.move_to(key_of(block, c + u));
        NTK_ALIBI_UNROLL
        for (int v = 0; v < vectors_per_tile; ++v) {
          f32v weight = vector_of(weights, c + u, v);
          store_vector(s_.tile.scores[1], c + u, v,
                       differentiate<Drops>(weight, dot[u][v], correction[v], v));
          if (Drops) store_vector(weights, c + u, v, weight);
        }
      }
    }
  }

  // Returns ds for one key. do.v is 0 for a dropped weight, which is 0 from then on.
  template <bool Drops>
  NTK_ALIBI_INLINE f32v differentiate(f32v& weight, f32v product, f32v correction, int v) const {
    if (Drops) product = masked(product, kept_.mask(v));
    const f32v gradient = weight * (product - correction);
    // do.v may be NaN for a masked key, or overflow for one without weight.
    const f32v seen = weight == 0.0f ? f32v{} : gradient;
    if (Drops) weight = masked(weight, kept_.mask(v));
    return seen;
  }

#if defined(NTK_ALIBI_AMX)

  // Likewise, for matrix registers. Rows of p and of ds times the scales, in pairs of the queries i
  // and i + 16, replace each key's scores; ds is in pairs of keys, too. Only these are rounded.
  template <bool Drops>
  void differentiate_products(const ScoredBlock& block) {
    multiply_matrices(s_.output_gradient, rows_.even_values(block.number), tile_.head_dim,
                      block.count, s_.tile.scores[1]);
    f32v log_sum[vectors_per_tile], correction[vectors_per_tile], scale[vectors_per_tile];
    for (int v = 0; v < vectors_per_tile; ++v) {
      log_sum[v] = vector_of(s_.tile.log_sum, 0, v);
      correction[v] = vector_of(s_.correction, 0, v);
      scale[v] = vector_of(s_.tile.scales, 0, v) * (1.0f / log2_e);
    }
    const f32v factor = broadcast(tile_.dropout.factor);
    for (int c = 0; c < keys_to_weigh<Words>(block.count); c += Words::keys_per_weight) {
      f32v gradient[vectors_per_tile][Words::keys_per_weight];
      NTK_ALIBI_UNROLL
      for (int u = 0; u < Words::keys_per_weight; ++u) {
        if (Drops && c + u < block.count) kept_.move_to(key_of(block, c + u));
        f32v weight[vectors_per_tile], scaled[vectors_per_tile];
        NTK_ALIBI_UNROLL
        for (int v = 0; v < vectors_per_tile; ++v) {
          weight[v] = exp2(vector_of(block.scores, c + u, v) - log_sum[v]);
          f32v product = vector_of(s_.tile.scores[1], c + u, v);
          if (Drops) product *= factor;
          gradient[v][u] = differentiate<Drops>(weight[v], product, correction[v], v);
          scaled[v] = gradient[v][u] * scale[v];
          if (Drops) weight[v] *= factor;
          store_vector(s_.tile.scores[1], c + u, v, gradient[v][u]);
        }
        store_vector(block.scores, c + u, 0, Words::pair(weight[0], weight[1]));
        store_vector(block.scores, c + u, 1, Words::pair(scaled[0], scaled[1]));
      }
      NTK_ALIBI_UNROLL
      for (int v = 0; v < vectors_per_tile; ++v)
        Words::store_weights(s_.key_pairs, c, v, gradient[v]);
    }
  }
#endif

  // Adds to the gradients of keys, values and queries.
  void add_products(const ScoredBlock& block) {
    const int width = padded(tile_.head_dim);
    const std::int64_t offset = (block.number - gradient_.first_block) * keys_per_block * width;
    float* const value_gradient = gradient_.value_gradient + offset;
    float* const key_gradient = gradient_.key_gradient + offset;
    const bool guarded = block.masked() && !rows_.keys_are_finite(block.number);
#if defined(NTK_ALIBI_AMX)
    if constexpr (Words::in_matrices) {
      add_over_pairs(block.scores, s_.output_gradient_rows, block.count, width, value_gradient);
      add_over_pairs(block.scores + lanes, s_.query_rows, block.count, width, key_gradient);
      if (!guarded)
        add_matrices(s_.key_pairs, rows_.transposed_keys(block.number), block.count, width,
                     s_.tile.output);
    } else
#endif
    {
      add_over_queries(block.scores, s_.output_gradient_rows, tile_.query_count, width, block.count,
                       value_gradient);
      add_over_queries(s_.tile.scores[1], s_.query_rows, tile_.query_count, width, block.count,
                       key_gradient);
      if (!guarded)
        add_rows<Words, false>(s_.tile, s_.tile.scores[1], rows_.keys(block.number), block.count,
                               tile_.head_dim);
    }
    if (!guarded) return;
    Rows keys;
    rows_.find_float_keys(block.number, keys);
    add_rows<Float32Words, true>(s_.tile, s_.tile.scores[1], keys, block.count, tile_.head_dim);
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
    for (int v = 0; v < vectors_per_tile; ++v) {
      const i32v position = load<i32v>(s_.tile.ints + v * lanes);
      f32v left = {}, right = {};
      for (int c = 0; c < block.count; ++c) {
        const i32v distance = position - broadcast(position_of(tile_.keys, key_of(block, c)));
        const f32v product = vector_of(s_.tile.scores[1], c, v) * to_float(distance);
        left -= distance > 0 ? product : f32v{};
        right += distance < 0 ? product : f32v{};
      }
      slopes_[0][v] += left;
      slopes_[1][v] += right;
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
      for (int side = 0; side < slope_sides; ++side)
        if (gradient_.slopes[side] != nullptr) gradient_.slopes[side][r] = slopes_[side][v][lane];
      if (gradient_.query_sums != nullptr) gradient_.query_sums[r] = query_sums_[v][lane];
    }
  }

  const GradientTile& gradient_;
  const AttentionTile& tile_;
  const GradientScratch& s_;
  BlockRows<Words> rows_;
  const TileReach reach_;
  KeptWeights<vectors_per_tile> kept_;
  Certificate certificate_;
  f32v slopes_[slope_sides][vectors_per_tile], query_sums_[vectors_per_tile];
};

template <class Words>
void differentiate_tile(const GradientTile& gradient, const GradientScratch& s) {
  load_gradient<Words>(gradient, s);
  GradientWalk<Words>(gradient, s).run();
}

}  // namespace

std::int64_t gradient_scratch_bytes(const AttentionTile& tile) {
  Pieces pieces;
  divide(pieces, tile);
  return pieces.bytes();
}

void gradient_tile(const GradientTile& gradient, void* scratch) {
  Pieces pieces(scratch);
  const GradientScratch s = divide(pieces, *gradient.tile);
#if defined(NTK_ALIBI_AMX)
  if (suits_matrices(*gradient.tile)) {
    MatrixRegisters::configure();
    differentiate_tile<Bfloat16Matrices>(gradient, s);
    return MatrixRegisters::release();
  }
#endif
  differentiate_tile<Float32Words>(gradient, s);
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

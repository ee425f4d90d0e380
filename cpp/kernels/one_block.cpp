// Attention of one vector of queries over one block of keys. In a short call most lanes of a whole
// tile would be padding, and its walk would cost more than its products.
//
// Lanes are queries up to the weights, as in attention.cpp. They are channels for the output, so
// that neither sums nor results have to be transposed, and a query takes no key behind the last one
// that its neighbours see.
#include "kernels/one_block.h"

#include "kernels/bias_functors.h"
#include "kernels/dropout.h"
#include "kernels/exp2.h"
#include "kernels/softmax.h"
#include "kernels/tile_scores.h"
#include "kernels/visible_blocks.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {
namespace {

// Queries and vectors of channels whose sums the registers hold beside the operands.
constexpr int queries_per_step = 4;
#if NTK_ALIBI_VECTOR_BYTES == 64 || defined(__aarch64__)
constexpr int vectors_per_step = 4;
#else
constexpr int vectors_per_step = 2;
#endif

class OneBlock {
 public:
  OneBlock(const AttentionTile& tile, const Scratch& s, BlockRows<Float32Words>& rows)
      : tile_(tile), s_(s), rows_(rows), reach_(tile) {
    const bool sees = tile.keys.count > 0 && reach_.sees(tile, 0);
    count_ = sees ? reach_.keys_to_read(tile, 0) : 0;
    mixed_ = sees && load_bits(tile, s, 0, lanes);
  }

  void run(float* results) {
    bool guarded = false;
    if (count_ > 0) {
      multiply();
      with_functor(tile_.bias.kind,
                   [&](auto functor) { score<typename decltype(functor)::type>(); });
      weigh();
      values_ = rows_.values(0);
      guarded = !rows_.values_are_finite(0);
    }
    for (int q = 0; q < tile_.query_count; q += queries_per_step)
      guarded ? write_queries<true>(q, results) : write_queries<false>(q, results);
  }

 private:
  // Stores the products of all queries and keys.
  void multiply() {
    const Rows& keys = rows_.keys(0);
    int c = 0;
    for (; c + 4 < count_; c += 8) multiply_keys<8>(keys, c);
    if (c < count_) multiply_keys<4>(keys, c);
  }

  // Stores products of some keys from key c on. Rows behind the last key repeat it; their products
  // are not used.
  template <int Keys>
  void multiply_keys(const Rows& keys, int c) {
    f32v dot[Keys] = {};
    for (int d = 0; d < tile_.head_dim; ++d) {
      const f32v query = vector_of(s_.query, d, 0);
      NTK_ALIBI_UNROLL
      for (int u = 0; u < Keys; ++u) dot[u] += broadcast_word(keys[c + u], d) * query;
    }
    for (int u = 0; u < Keys; ++u) store_vector(s_.scores[0], c + u, 0, dot[u]);
  }

  // Turns products into scores.
  template <class Bias>
  void score() {
    const Bias bias(tile_, s_);
    f32v greatest = broadcast(-infinity);
    for (int c = 0; c < count_; ++c) {
      const f32v product = vector_of(s_.scores[0], c, 0);
      const f32v score = masked_score(tile_, s_, bias, product, c, 0, mixed_);
      store_vector(s_.scores[0], c, 0, score);
      greatest = max(greatest, score);
    }
    maximum_ = greatest;
  }

  void weigh() {
    const f32v origin = origin_of_scores(maximum_);
    f32v sum = {};
    for (int c = 0; c < count_; ++c) {
      const f32v weight = exp2(vector_of(s_.scores[0], c, 0) - origin);
      store_vector(s_.scores[0], c, 0, weight);
      sum += weight;
    }
    sum_ = sum;
    if (!drops(tile_)) return;
    KeptWeights<1> kept(tile_);
    drop_weights<Float32Words>(kept, s_.scores[0], 0, count_);
  }

  float factor_of_results(int q) const { return inverse_of_sum(sum_[q]) * tile_.dropout.factor; }

  // Writes the results of queries_per_step queries from query q on. `results` is memory for them.
  template <bool Guarded>
  void write_queries(int q, float* results) {
    const int keys = keys_with_weight(q);
    const int head_dim = tile_.head_dim;
    int d = 0;
    for (; d + vectors_per_step * lanes <= head_dim; d += vectors_per_step * lanes)
      add_values<vectors_per_step, Guarded>(q, keys, d, results);
    for (; d + lanes <= head_dim; d += lanes) add_values<1, Guarded>(q, keys, d, results);
    for (; d < head_dim; ++d) add_channel(q, keys, d, results);
    for (int i = 0; i < queries_per_step && q + i < tile_.query_count; ++i) {
      write_row(
          results + i * head_dim, head_dim, tile_.dtype,
          static_cast<char*>(tile_.output) + row_bytes(tile_.output_stride, q + i, tile_.dtype));
      write_sum(tile_, q + i, maximum_[q + i], sum_[q + i]);
    }
  }

  const float* weights_of(int key, int q) const { return lane_row(s_.scores[0], key) + q; }

  // The keys up to the last one that has weight for one of the queries from q on.
  int keys_with_weight(int q) const {
    int keys = count_;
    for (; keys > 0; --keys) {
      std::uint32_t bits[queries_per_step], any = 0;
      std::memcpy(bits, weights_of(keys - 1, q), sizeof bits);
      for (const std::uint32_t weight : bits) any |= weight;
      if (any != 0) break;
    }
    return keys;
  }

  // With Guarded, a weight of 0, as masked and dropped keys have, contributes 0 even if the value
  // is not finite.
  template <int Vectors, bool Guarded>
  void add_values(int q, int keys, int d, float* results) {
    f32v sum[queries_per_step][Vectors] = {};
    for (int c = 0; c < keys; ++c) {
      const float* weights = weights_of(c, q);
      const float* value = reinterpret_cast<const float*>(values_[c]) + d;
      NTK_ALIBI_UNROLL
      for (int i = 0; i < queries_per_step; ++i) {
        if (Guarded && weights[i] == 0.0f) continue;
        const f32v weight = broadcast(weights[i]);
        NTK_ALIBI_UNROLL
        for (int v = 0; v < Vectors; ++v) sum[i][v] += weight * load<f32v>(value + v * lanes);
      }
    }
    NTK_ALIBI_UNROLL
    for (int i = 0; i < queries_per_step; ++i) {
      const f32v factor = broadcast(factor_of_results(q + i));
      NTK_ALIBI_UNROLL
      for (int v = 0; v < Vectors; ++v)
        store(results + i * tile_.head_dim + d + v * lanes, sum[i][v] * factor);
    }
  }

  void add_channel(int q, int keys, int d, float* results) {
    for (int i = 0; i < queries_per_step; ++i) {
      float sum = 0.0f;
      for (int c = 0; c < keys; ++c) {
        const float weight = weights_of(c, q)[i];
        if (weight != 0.0f) sum += weight * reinterpret_cast<const float*>(values_[c])[d];
      }
      results[i * tile_.head_dim + d] = sum * factor_of_results(q + i);
    }
  }

  const AttentionTile& tile_;
  const Scratch& s_;
  BlockRows<Float32Words>& rows_;
  const TileReach reach_;
  int count_;                            // keys to read
  bool mixed_;                           // the mask's words hide some of them
  const char* const* values_ = nullptr;  // their values
  f32v maximum_ = broadcast(-infinity);
  f32v sum_ = {};  // relative to the maximum
};

}  // namespace

std::int64_t one_block_scratch_bytes(int head_dim) {
  Pieces pieces;
  pieces.rows(head_dim, 1);
  pieces.tile(head_dim);
  return pieces.bytes();
}

void one_block_tile(const AttentionTile& tile, void* scratch) {
  Pieces pieces(scratch);
  const RowScratch row_memory = pieces.rows(tile.head_dim, 1);
  row_memory.stored->key = nullptr;  // nothing is stored yet
  const Scratch s = pieces.tile(tile.head_dim);
  BlockRows<Float32Words> rows(tile, row_memory);
  Rows queries;
  load_tile_rows(tile, s, lanes);
  pack_rows<Float32Words>(rows.queries(tile, queries, lanes), tile.head_dim, s.scales, s.query,
                          lanes);
  OneBlock(tile, s, rows).run(s.output);
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

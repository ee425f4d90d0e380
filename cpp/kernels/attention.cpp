// Attention of one tile of queries, lanes = queries: keys and values are read in place and
// broadcast, and everything that belongs to a query (maximum, sum, mask, bias) stays within its
// lane.
#include "kernels/attention.h"

#include "kernels/bias_functors.h"
#include "kernels/certificate.h"
#include "kernels/dropout.h"
#include "kernels/exp2.h"
#include "kernels/softmax.h"
#include "kernels/tile_scores.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {
namespace {

void begin_tile(const AttentionTile& tile, const Scratch& s) {
  load_tile_rows(tile, s);
  for (int v = 0; v < vectors_per_tile; ++v) {
    store_vector(s.maximum, 0, v, broadcast(-infinity));
    store_vector(s.log_sum, 0, v, broadcast(-infinity));
    store_vector(s.sum, 0, v, f32v{});
  }
  for (int r = 0; tile.skipping.known_logsumexps != nullptr && r < queries_per_tile; ++r)
    s.log_sum[r] = static_cast<float>(known_log_sum(tile, r < tile.query_count ? r : 0));
  for (std::int64_t d = 0; d < tile.head_dim; ++d)
    for (int v = 0; v < vectors_per_tile; ++v) store_vector(s.output, d, v, f32v{});
}

void write_tile(const AttentionTile& tile, const Scratch& s) {
  for (int v = 0; v < vectors_per_tile; ++v)
    store_vector(s.rescale, 0, v, inverse_of_sum(vector_of(s.sum, 0, v)) * tile.dropout.factor);
  write_lanes(s.output, s.rescale, tile, {tile.output, tile.output_stride, tile.dtype});
  for (int r = 0; r < tile.query_count; ++r) write_sum(tile, r, s.maximum[r], s.sum[r]);
}

// Turns the scores of a block into weights, a few keys at a time, and sums the weights.
template <class Words>
class Weighing {
 public:
  NTK_ALIBI_INLINE Weighing(const Scratch& s, const ScoredBlock& block)
      : scores_(block.scores), count_(block.count) {
    for (int v = 0; v < vectors_per_tile; ++v) {
      origin_[v] = origin_of_scores(vector_of(s.maximum, 0, v));
      sum_[v] = f32v{};
    }
  }

  NTK_ALIBI_INLINE void weigh(int c) {
    for (int v = 0; v < vectors_per_tile; ++v) sum_[v] += weigh(c, v);
  }

  // Weighs the remaining keys, from key c on, and updates the running sum.
  NTK_ALIBI_INLINE void finish(const Scratch& s, int c) {
    if (count_ == 0) return;
    for (int v = 0; v < vectors_per_tile; ++v) {
      f32v block_sum = sum_[v];
      for (int k = c; k < count_; k += Words::keys_per_weight) block_sum += weigh(k, v);
      const f32v sum = vector_of(s.sum, 0, v) * vector_of(s.rescale, 0, v) + block_sum;
      store_vector(s.sum, 0, v, sum);
      // The exponent of a float is a lower bound of its logarithm.
      const i32v exponent = (i32v)(bits_of(sum) >> 23) - 127;
      store_vector(
          s.log_sum, 0, v,
          max(vector_of(s.log_sum, 0, v), vector_of(s.maximum, 0, v) + to_float(exponent)));
    }
  }

 private:
  // Weighs keys_per_weight keys for one vector of queries, and returns their sum.
  NTK_ALIBI_INLINE f32v weigh(int c, int v) const {
    f32v weight[Words::keys_per_weight];
    for (int u = 0; u < Words::keys_per_weight; ++u)
      weight[u] = exp2(vector_of(scores_, c + u, v) - origin_[v]);
    f32v sum = weight[0];
    for (int u = 1; u < Words::keys_per_weight; ++u) sum += weight[u];
    Words::store_weights(scores_, c, v, weight);
    return sum;
  }

  float* const scores_;
  const int count_;
  f32v origin_[vectors_per_tile];
  f32v sum_[vectors_per_tile];
};

// Scores a block, and meanwhile weighs the block before it.
template <class Words, class Bias>
void score_block(const AttentionTile& tile, const Scratch& s, const Rows& rows,
                 const ScoredBlock& block, const ScoredBlock& before) {
  const Bias bias(tile, s);
  Weighing<Words> weighing(s, before);
  if (!mixes_work) weighing.finish(s, 0);
  f32v greatest[vectors_per_tile];
  for (int v = 0; v < vectors_per_tile; ++v) greatest[v] = broadcast(-infinity);
  for (int c = 0; c < block.count; c += rows_per_step) {
    f32v dot[rows_per_step][vectors_per_tile] = {};
    if (mixes_work && c < before.count)
      multiply<Words>(s.query, rows + c, tile.head_dim, dot, [&](int u) { weighing.weigh(c + u); });
    else
      multiply<Words>(s.query, rows + c, tile.head_dim, dot, [](int) {});
    store_scores<Words>(tile, s, bias, dot, block, c, greatest);
  }
  for (int v = 0; v < vectors_per_tile; ++v) store_vector(s.block_maximum, 0, v, greatest[v]);
  if (mixes_work)
    weighing.finish(s, (block.count + rows_per_step - 1) / rows_per_step * rows_per_step);
}

// Raises the running maximum to that of the current block.
void raise_maximum(const Scratch& s) {
  for (int v = 0; v < vectors_per_tile; ++v) {
    const f32v before = vector_of(s.maximum, 0, v);
    const f32v maximum = max(before, vector_of(s.block_maximum, 0, v));
    store_vector(s.maximum, 0, v, maximum);
    store_vector(s.rescale, 0, v, exp2(before - origin_of_scores(maximum)));
    store_vector(s.log_sum, 0, v, max(maximum, vector_of(s.log_sum, 0, v)));
  }
}

// The walk of one tile over the blocks of keys. It weighs each block while it forms the products of
// the next one.
template <class Words>
class TileWalk {
 public:
  // <new> has inline functions, which must not cross between ISAs.
  static void* operator new(std::size_t, void* memory) { return memory; }

  TileWalk(const AttentionTile& tile, const Scratch& s, BlockRows<Words>& rows)
      : tile_(tile),
        s_(s),
        rows_(rows),
        reach_(tile),
        kept_(tile),
        certificate_(tile, greatest_query_norm<Words>(tile, s)) {
    middle_ = reach_.last_block_behind(tile);
    score_centre<Words>(tile, s);
    if (certificate_.possible() && tile.skipping.known_logsumexps != nullptr)
      certificate_.update(least_log_sum(s));
  }

  // The caller steps from the last block back to the first, then ahead to the last. The tile reads
  // blocks up to its own position on the way back, and the others on the way ahead.
  void step_back(std::int64_t b) {
    if (b > middle_ || back_is_done_) return;
    back_is_done_ = reach_.ends_before(tile_, b) || certificate_.drops_back_from(b);
    if (!back_is_done_) visit(b);
  }
  void step_ahead(std::int64_t b) {
    if (b <= middle_ || ahead_is_done_) return;
    ahead_is_done_ = reach_.ends_behind(tile_, b) || certificate_.drops_ahead_from(b);
    if (!ahead_is_done_) visit(b);
  }
  std::int64_t middle() const { return middle_; }
  bool back_is_done() const { return back_is_done_; }
  bool ahead_is_done() const { return ahead_is_done_; }

  BlocksRead finish() {
    Weighing<Words>(s_, scored_).finish(s_, 0);
    add_values();
    return read_;
  }

 private:
  void visit(std::int64_t b) {
    if (!reach_.sees(block_of(tile_.keys, b)) || certificate_.try_drop(b)) return;
    const ScoredBlock block{scored_.scores == s_.scores[0] ? s_.scores[1] : s_.scores[0], b,
                            reach_.keys_to_read(tile_, b * keys_per_block),
                            unmasked_keys(tile_, reach_, b)};
    with_functor(tile_.bias.kind, [&](auto functor) {
      using Bias = typename decltype(functor)::type;
      score_block<Words, Bias>(tile_, s_, rows_.keys(b), block, scored_);
    });
    ++read_.scored;
    add_values();
    scored_ = {};
    if (certificate_.possible() && certificate_.try_drop_scored(greatest_excess(s_))) return;
    ++read_.weighed;
    raise_maximum(s_);
    scored_ = block;
    if (certificate_.possible()) certificate_.update(least_log_sum(s_));
  }

  void add_values() {
    if (scored_.count == 0) return;
    constexpr int group = Words::keys_per_weight;
    if (drops(tile_))
      drop_weights<Words>(kept_, scored_.scores, scored_.number * keys_per_block, scored_.count);
    if ((scored_.masked() || drops(tile_)) && !rows_.values_are_finite(scored_.number))
      add_guarded(s_, scored_.scores, rows_, scored_.number, scored_.count, tile_.head_dim);
    else
      add_rows<Words, false>(s_, scored_.scores, rows_.values(scored_.number),
                             (scored_.count + group - 1) / group, tile_.head_dim);
  }

  const AttentionTile& tile_;
  const Scratch& s_;
  BlockRows<Words>& rows_;
  const TileReach reach_;
  KeptWeights<vectors_per_tile> kept_;
  Certificate certificate_;
  ScoredBlock scored_;  // its values are not yet added
  std::int64_t middle_;
  bool back_is_done_ = false, ahead_is_done_ = false;
  BlocksRead read_ = {};
};

// Walks a group of tiles of one head together, so that each block is fetched and converted once.
template <class Words>
void walk(const AttentionTile* tiles, const Scratch* s, int count, BlockRows<Words>& rows,
          BlocksRead* read) {
  alignas(TileWalk<Words>) char memory[tiles_per_group][sizeof(TileWalk<Words>)];
  TileWalk<Words>* walks[tiles_per_group];
  std::int64_t last = 0, first = block_count(tiles[0].keys);
  for (int t = 0; t < count; ++t) {
    walks[t] = new (memory[t]) TileWalk<Words>(tiles[t], s[t], rows);
    last = walks[t]->middle() > last ? walks[t]->middle() : last;
    first = walks[t]->middle() < first ? walks[t]->middle() : first;
  }
  for (std::int64_t b = last; b >= 0 && !must_stop(tiles[0], b); --b) {
    bool done = true;
    for (int t = 0; t < count; ++t) {
      walks[t]->step_back(b);
      done = done && walks[t]->back_is_done();
    }
    if (done) break;
  }
  for (std::int64_t b = first + 1; b < block_count(tiles[0].keys) && !must_stop(tiles[0], b); ++b) {
    bool done = true;
    for (int t = 0; t < count; ++t) {
      walks[t]->step_ahead(b);
      done = done && walks[t]->ahead_is_done();
    }
    if (done) break;
  }
  for (int t = 0; t < count; ++t) {
    prefetch_rows<1>(tiles[t].output, tiles[t].output_stride, tiles[t].query_count,
                     tiles[t].head_dim, tiles[t].dtype);
    read[t] = walks[t]->finish();
  }
}

template <class Words>
void attend(const AttentionTile* tiles, int count, void* memory, BlocksRead* read) {
  const int head_dim = tiles[0].head_dim;
  Pieces pieces(memory);
  const RowScratch row_memory = pieces.rows(head_dim, slots_for(tiles[0]));
  BlockRows<Words> rows(tiles[0], row_memory);
  Scratch s[tiles_per_group] = {};
  for (int t = 0; t < count; ++t)
    prefetch_rows<0>(tiles[t].query, tiles[t].query_stride, tiles[t].query_count, head_dim,
                     tiles[t].dtype);
  for (int t = 0; t < count; ++t) {
    s[t] = pieces.tile(head_dim);
    begin_tile(tiles[t], s[t]);
    Rows queries;
    pack_rows<Words>(rows.queries(tiles[t], queries), head_dim / Words::channels_per_word,
                     s[t].scales, s[t].query);
  }
  walk<Words>(tiles, s, count, rows, read);
  for (int t = 0; t < count; ++t) write_tile(tiles[t], s[t]);
}

}  // namespace

std::int64_t attention_scratch_bytes(const AttentionTile& tile) {
  Pieces pieces;
  pieces.rows(tile.head_dim, slots_for(tile));
  for (int t = 0; t < tiles_per_group; ++t) pieces.tile(tile.head_dim);
  return pieces.bytes();
}

void attention_tiles(const AttentionTile* tiles, int count, void* scratch, BlocksRead* read) {
#if defined(__AVX512BF16__)
  // Its products flush numbers below 2^-126 to 0, which a greater scale would make matter.
  constexpr float greatest_scale = 1 << 20;
  if (tiles[0].key.dtype == DType::bfloat16 && tiles[0].head_dim % 2 == 0 &&
      tiles[0].greatest_scale <= greatest_scale)
    return attend<Bfloat16Pairs>(tiles, count, scratch, read);
#endif
  attend<Float32Words>(tiles, count, scratch, read);
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

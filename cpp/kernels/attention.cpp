// Attention of one tile of queries, lanes = queries: keys and values are read in place and
// broadcast, and everything that belongs to a query (maximum, sum, mask, bias) stays within its
// lane.
#include "kernels/attention.h"

#include "kernels/bias_functors.h"
#include "kernels/certificate.h"
#include "kernels/dropout.h"
#if defined(NTK_ALIBI_AMX)
#include "kernels/matrix_scores.h"
#endif
#include "kernels/softmax.h"
#include "kernels/tile_scores.h"
#include "kernels/weights.h"

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

// Scores a block, and meanwhile weighs the block before it.
template <class Words, class Bias>
void score_block(const AttentionTile& tile, const Scratch& s, const Rows& rows,
                 const ScoredBlock& block, const ScoredBlock& before) {
  const Bias bias(tile, s);
  Weighing<Words> weighing(s, before);
  if (!mixes_work<Words>) weighing.finish(s, 0);
  f32v greatest[vectors_per_tile];
  for (int v = 0; v < vectors_per_tile; ++v) greatest[v] = broadcast(-infinity);
  for (int c = 0; c < block.count; c += rows_per_step) {
    f32v dot[rows_per_step][vectors_per_tile] = {};
    if (mixes_work<Words> && c < before.count)
      multiply<Words>(s.query, rows + c, tile.head_dim, dot, [&](int u) { weighing.weigh(c + u); });
    else
      multiply<Words>(s.query, rows + c, tile.head_dim, dot, [](int) {});
    store_scores<Words>(tile, s, bias, dot, block, c, greatest);
  }
  for (int v = 0; v < vectors_per_tile; ++v) store_vector(s.block_maximum, 0, v, greatest[v]);
  if (mixes_work<Words>)
    weighing.finish(s, (block.count + rows_per_step - 1) / rows_per_step * rows_per_step);
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
    if (!reach_.sees(tile_, b) || certificate_.try_drop(b)) return;
#if defined(NTK_ALIBI_AMX)
    if constexpr (Words::in_matrices) return visit_by_matrices(b);
#endif
    const int count = reach_.keys_to_read(tile_, b * keys_per_block);
    const ScoredBlock block{scored_.scores == s_.scores[0] ? s_.scores[1] : s_.scores[0], b, count,
                            unmasked_keys(tile_, s_, reach_, b, count), load_bits(tile_, s_, b)};
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

#if defined(NTK_ALIBI_AMX)
  void visit_by_matrices(std::int64_t b) {
    const int count = reach_.keys_to_read(tile_, b * keys_per_block);
    scored_ = {s_.scores[0], b, count, unmasked_keys(tile_, s_, reach_, b, count),
               load_bits(tile_, s_, b)};
    multiply_matrices(s_.query, rows_.even_keys(b), tile_.head_dim, scored_.count, scored_.scores);
    ++read_.scored;
    with_functor(tile_.bias.kind,
                 [&](auto functor) { weigh_or_drop<typename decltype(functor)::type>(); });
    scored_ = {};
  }

  template <class Bias>
  void weigh_or_drop() {
    f32v sums[vectors_per_tile];
    bool weighed = false;
    if constexpr (Bias::depends_on_distance)
      if (!maximum_rises_ && tile_.keys.positions == nullptr &&
          scored_.unmasked.holds(0, keys_per_block) && !scored_.mixed)
        weighed = weigh_products<Bias>(tile_, s_, scored_, s_.scores[1], sums);
    if (!weighed) score_products<Words, Bias>(tile_, s_, scored_);
    if (certificate_.possible() && certificate_.try_drop_scored(greatest_excess(s_))) return;
    ++read_.weighed;
    if (weighed) {
      scored_.scores = s_.scores[1];
      for (int v = 0; v < vectors_per_tile; ++v) {
        store_vector(s_.rescale, 0, v, broadcast(1.0f));
        add_to_sum(s_, v, sums[v]);
      }
    } else {
      maximum_rises_ = raise_maximum(s_);
      Weighing<Words>(s_, scored_).finish(s_, 0);
    }
    add_values();
    if (certificate_.possible()) certificate_.update(least_log_sum(s_));
  }
#endif

  void add_values() {
    if (scored_.count == 0) return;
    constexpr int group = Words::keys_per_weight;
    if (drops(tile_))
      drop_weights<Words>(kept_, scored_.scores, scored_.number * keys_per_block, scored_.count);
    if ((scored_.masked() || drops(tile_)) && !rows_.values_are_finite(scored_.number))
      return add_guarded(s_, scored_.scores, rows_, scored_.number, scored_.count, tile_.head_dim);
    if constexpr (Words::in_matrices) {
#if defined(NTK_ALIBI_AMX)
      rescale_output(s_, tile_.head_dim);
      add_matrices(scored_.scores, rows_.transposed_values(scored_.number), scored_.count,
                   tile_.head_dim, s_.output);
#endif
    } else {
      add_rows<Words, false>(s_, scored_.scores, rows_.values(scored_.number),
                             (scored_.count + group - 1) / group, tile_.head_dim);
    }
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
  [[maybe_unused]] bool maximum_rises_ = true;  // it did for the last block that was scored first
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
  for (std::int64_t b = last; b >= 0 && !must_end<Words>(tiles[0], b); --b) {
    bool done = true;
    for (int t = 0; t < count; ++t) {
      walks[t]->step_back(b);
      done = done && walks[t]->back_is_done();
    }
    if (done) break;
  }
  for (std::int64_t b = first + 1; b < block_count(tiles[0].keys) && !must_end<Words>(tiles[0], b);
       ++b) {
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
    if (Words::in_matrices)  // scores are weights before the next tile has any
      for (int i = 0; i < 2; ++i) s[t].scores[i] = s[0].scores[i];
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
#if defined(NTK_ALIBI_AMX)
  if (suits_matrices(tiles[0])) {
    MatrixRegisters::configure();
    attend<Bfloat16Matrices>(tiles, count, scratch, read);
    return MatrixRegisters::release();
  }
#elif defined(__AVX512BF16__)
  if (suits_bfloat16(tiles[0], Bfloat16Pairs::channels_per_word))
    return attend<Bfloat16Pairs>(tiles, count, scratch, read);
#endif
  attend<Float32Words>(tiles, count, scratch, read);
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

// The weights of a tile that dropout keeps. docs/formulas.md has the rule.
#pragma once

#include "kernels/attention.h"
#include "kernels/key_list.h"
#include "kernels/philox.h"
#include "kernels/words.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

void random_numbers(const Dropout& dropout, std::int64_t keys, std::int64_t stride,
                    std::uint16_t* out);

// Random integers of a tile, one for each pair of a query and a key, lanes = queries. They are
// drawn for keys_per_draw keys at once, and kept for the keys that follow.
template <int Vectors>
class TileRandom {
 public:
  explicit TileRandom(const Dropout& dropout) : dropout_(dropout), keys_(dropout.seed) {}

  // Moves to the key with this index among the rows of `key`.
  void move_to(std::int64_t index) {
    const auto key = static_cast<std::uint64_t>(dropout_.first_key + index);
    if (key / keys_per_draw != drawn_) draw(key / keys_per_draw);
    half_ = static_cast<unsigned>(key % keys_per_draw);
  }

  // 16 bits for each query of a vector.
  u32v drawn(int v) const {
    const u32v words = words_[half_ / 2][v];
    return half_ % 2 == 0 ? words & 0xffffu : words >> 16;
  }

 private:
  static constexpr int keys_per_draw = 8;

  void draw(std::uint64_t group) {
    drawn_ = group;
    const u64v queries = (u64v)((u32v)iota() + dropout_.first_query);
    for (int v = 0; v < Vectors; ++v) {
      // Even and odd queries share a lane of 64 bits.
      u64v words[2][4];
      for (int odd = 0; odd < 2; ++odd) {
        const u64v of_tile = odd == 0 ? queries : queries >> 32;
        words[odd][0] = broadcast(group);
        words[odd][1] = of_tile + broadcast(static_cast<std::uint64_t>(v * lanes));
        words[odd][2] = broadcast(static_cast<std::uint64_t>(dropout_.head));
        words[odd][3] = broadcast(static_cast<std::uint64_t>(dropout_.row));
        philox(keys_, words[odd]);
      }
      for (int w = 0; w < 4; ++w)
        words_[w][v] = (u32v)((words[0][w] & 0xffffffffu) | words[1][w] << 32);
    }
  }

  const Dropout& dropout_;
  const PhiloxKeys keys_;
  std::uint64_t drawn_ = ~std::uint64_t{0};
  unsigned half_ = 0;
  u32v words_[4][Vectors];
};

// Tells which weights of a tile stay.
template <int Vectors>
class KeptWeights {
 public:
  explicit KeptWeights(const AttentionTile& tile) : tile_(tile), random_(tile.dropout) {}

  // Moves to a key, by its number in the key list.
  void move_to(std::int64_t key) { random_.move_to(index_of(tile_.keys, key)); }

  // All bits of a lane are set if its query keeps the weight of the key.
  i32v mask(int v) const { return (i32v)random_.drawn(v) >= broadcast(tile_.dropout.least_kept); }

 private:
  const AttentionTile& tile_;
  TileRandom<Vectors> random_;
};

inline bool drops(const AttentionTile& tile) { return tile.dropout.least_kept > 0; }

// Sets the dropped ones of the weights of `count` keys, from key `first` on, to 0.
template <class Words, int Vectors>
void drop_weights(KeptWeights<Vectors>& kept, float* weights, std::int64_t first, int count) {
  for (int c = 0; c < count; c += Words::keys_per_weight) {
    i32v mask[Vectors][Words::keys_per_weight];
    NTK_ALIBI_UNROLL
    for (int u = 0; u < Words::keys_per_weight; ++u) {
      kept.move_to(first + (c + u < count ? c + u : c));  // a last key without a pair is repeated
      NTK_ALIBI_UNROLL
      for (int v = 0; v < Vectors; ++v) mask[v][u] = kept.mask(v);
    }
    NTK_ALIBI_UNROLL
    for (int v = 0; v < Vectors; ++v) Words::mask_weights(weights, c, v, mask[v]);
  }
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

// Biases as functors, log2 domain. at() adds the bias to the products of one key with a vector of
// queries; it is given the distances from the origins of their biases. A bias that depends on the
// distance alone takes it as float, for keys that the bias does not hide. A linear one hides none.
// A proportional one is -slope(v) times the distance for all distances.
#pragma once

#include "kernels/key_list.h"
#include "kernels/scratch.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

struct LinearBias {
  static constexpr bool is_linear = true;
  static constexpr bool depends_on_distance = true;
  static constexpr bool is_proportional = false;
};

struct OtherBias {
  static constexpr bool is_linear = false;
  static constexpr bool depends_on_distance = false;
  static constexpr bool is_proportional = false;
};

struct NoBias : LinearBias {
  NoBias(const AttentionTile&, const Scratch&) {}
  f32v at(f32v product, int, f32v) const { return product; }
};

struct OneSidedBias : LinearBias {
  static constexpr bool is_proportional = true;
  OneSidedBias(const AttentionTile&, const Scratch& s) : slopes(s.slopes) {}
  f32v at(f32v product, int v, f32v distance) const {
    return minus_product(product, slope(v), distance);
  }
  f32v slope(int v) const { return vector_of(slopes, 0, v); }
  const float* slopes;
};

struct TwoSidedBias : LinearBias {
  TwoSidedBias(const AttentionTile&, const Scratch& s) : slopes(s.slopes) {}
  f32v at(f32v product, int v, f32v distance) const {
    const f32v slope = distance > 0 ? vector_of(slopes, 0, v) : -vector_of(slopes, 1, v);
    return minus_product(product, slope, distance);
  }
  const float* slopes;
};

// The other biases gather one value for each lane, in nats. A value of -infinity hides the key,
// even where the product is NaN or infinite. A finite one hides none, even if it is beyond
// float32's range in units of log 2, as the usual mask constant of frameworks is.
inline f32v unless_hidden(f32v product, f32v value) {
  constexpr float least = -3.4028234663852886e38f;
  // max returns its second operand for NaN, which must stay NaN.
  return value == -infinity ? value : product + max(broadcast(least), value * log2_e);
}

struct TableBias : OtherBias {
  static constexpr bool depends_on_distance = true;
  TableBias(const AttentionTile& tile, const Scratch&) : bias(tile.bias) {}
  f32v at(f32v product, std::int64_t, int, i32v distance) const {
    const std::int64_t first = distance[0] - bias.table_begin;
    // Neighbouring queries have neighbouring entries, which one load reads.
    if (first >= 0 && first + lanes <= bias.table_size &&
        !any(distance != broadcast(distance[0]) + iota()))
      return unless_hidden(product, load<f32v>(bias.table + first));
    f32v value = {};
    for (int lane = 0; lane < lanes; ++lane) {
      const std::int64_t index = distance[lane] - bias.table_begin;
      if (index >= 0 && index < bias.table_size) value[lane] = bias.table[index];
    }
    return unless_hidden(product, value);
  }
  // For blocks whose entries are plain_runs().
  f32v at(f32v product, int, f32v distance) const {
    const std::int64_t first = static_cast<std::int64_t>(distance[0]) - bias.table_begin;
    return product + load<f32v>(bias.table + first) * log2_e;
  }
  const TileBias& bias;
};

struct SumsBias : OtherBias {
  SumsBias(const AttentionTile& tile, const Scratch&) : tile(tile) {}
  f32v at(f32v product, std::int64_t key, int v, i32v) const {
    const double behind = tile.bias.key_sums[index_of(tile.keys, key)];
    f32v value = {};
    for (int lane = 0; lane < lanes; ++lane) {
      const int i = v * lanes + lane;
      if (i < tile.query_count) value[lane] = static_cast<float>(tile.bias.query_sums[i] - behind);
    }
    return unless_hidden(product, value);
  }
  const AttentionTile& tile;
};

struct DenseBias : OtherBias {
  DenseBias(const AttentionTile& tile, const Scratch&) : tile(tile) {}
  f32v at(f32v product, std::int64_t key, int v, i32v) const {
    const float* column = tile.bias.dense + index_of(tile.keys, key) * tile.bias.dense_key_stride;
    f32v value = {};
    for (int lane = 0; lane < lanes; ++lane) {
      const int i = v * lanes + lane;
      if (i < tile.query_count) value[lane] = column[i * tile.bias.dense_query_stride];
    }
    return unless_hidden(product, value);
  }
  const AttentionTile& tile;
};

template <class Functor>
struct FunctorType {
  using type = Functor;
};

// Calls visit(FunctorType<F>) with the functor F of a kind of bias.
template <class Visit>
void with_functor(BiasKind kind, Visit&& visit) {
  switch (kind) {
    case BiasKind::none: return visit(FunctorType<NoBias>{});
    case BiasKind::one_sided: return visit(FunctorType<OneSidedBias>{});
    case BiasKind::two_sided: return visit(FunctorType<TwoSidedBias>{});
    case BiasKind::table: return visit(FunctorType<TableBias>{});
    case BiasKind::sums: return visit(FunctorType<SumsBias>{});
    case BiasKind::dense: return visit(FunctorType<DenseBias>{});
  }
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

#include "kernels/key_norms.h"

#include "kernels/constants.h"
#include "kernels/elements.h"
#include "kernels/key_list.h"
#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

namespace {

// The factor of a row's entries.
template <DType dtype>
float scale_of(const HeadRows& key, std::int64_t row) {
  return dtype == DType::int8 ? key.scales[row] : 1.0f;
}

// sums[d .. d + Vectors * lanes) = the sum over the first `count` keys, each times `share`.
template <DType dtype, int Vectors>
void add_keys(const KeyList& keys, std::int64_t count, const HeadRows& key, int d, float share,
              float* sums) {
  f32v sum[Vectors] = {};
  for (std::int64_t c = 0; c < count; ++c) {
    const std::int64_t index = index_of(keys, c);
    const f32v factor = broadcast(share * scale_of<dtype>(key, index));
    for (int v = 0; v < Vectors; ++v)
      sum[v] += elements(row_at(key, index), d + v * lanes, dtype) * factor;
  }
  for (int v = 0; v < Vectors; ++v) store(sums + d + v * lanes, sum[v]);
}

template <DType dtype>
void mean_of_keys(const KeyList& keys, const HeadRows& key, int head_dim, float* centre) {
  constexpr int vectors_at_once = 4;
  const std::int64_t count = keys.count < keys_in_centre ? keys.count : keys_in_centre;
  const float share = 1.0f / static_cast<float>(count);
  int d = 0;
  for (; d + vectors_at_once * lanes <= head_dim; d += vectors_at_once * lanes)
    add_keys<dtype, vectors_at_once>(keys, count, key, d, share, centre);
  for (; d + lanes <= head_dim; d += lanes) add_keys<dtype, 1>(keys, count, key, d, share, centre);
  for (; d < head_dim; ++d) {
    centre[d] = 0.0f;
    for (std::int64_t c = 0; c < count; ++c) {
      const std::int64_t index = index_of(keys, c);
      centre[d] += element(row_at(key, index), d, dtype) * share * scale_of<dtype>(key, index);
    }
  }
}

// A constant dtype takes the choice of the conversion out of the loops.
template <DType dtype>
float greatest_square(const KeyList& keys, std::int64_t b, const HeadRows& key, int head_dim,
                      const float* centre) {
  constexpr int rows_at_once = 4;  // which share the loads of the centre
  const int count = keys_in_block(keys, b);
  float greatest = 0.0f;
  for (int c = 0; c < count; c += rows_at_once) {
    const char* row[rows_at_once];
    float scale[rows_at_once];
    for (int u = 0; u < rows_at_once; ++u) {
      const int real = c + u < count ? c + u : count - 1;
      const std::int64_t index = index_of(keys, b * keys_per_block + real);
      row[u] = row_at(key, index);
      scale[u] = scale_of<dtype>(key, index);
    }
    f32v squares[rows_at_once] = {};
    int d = 0;
    for (; d + lanes <= head_dim; d += lanes)
      for (int u = 0; u < rows_at_once; ++u) {
        const f32v x = elements(row[u], d, dtype) * broadcast(scale[u]) - load<f32v>(centre + d);
        squares[u] += x * x;
      }
    for (int u = 0; u < rows_at_once; ++u) {
      float sum = horizontal_sum(squares[u]);
      for (int rest = d; rest < head_dim; ++rest) {
        const float x = element(row[u], rest, dtype) * scale[u] - centre[rest];
        sum += x * x;
      }
      if (!(sum < infinity)) return infinity;  // for NaN, too: neither proves a bound
      if (sum > greatest) greatest = sum;
    }
  }
  return greatest;
}

}  // namespace

bool rows_are_finite(const HeadRows& rows, std::int64_t first, std::int64_t count, int head_dim) {
  f32v zeros = {};
  for (std::int64_t r = first; r < first + count; ++r) zeros += sum_of_zeros(rows, r, head_dim);
  return is_finite(zeros);
}

void centre_of_keys(const KeyList& keys, const HeadRows& key, int head_dim, float* centre) {
  switch (key.dtype) {
    case DType::float32: mean_of_keys<DType::float32>(keys, key, head_dim, centre); break;
    case DType::bfloat16: mean_of_keys<DType::bfloat16>(keys, key, head_dim, centre); break;
    case DType::float16: mean_of_keys<DType::float16>(keys, key, head_dim, centre); break;
    case DType::int8: mean_of_keys<DType::int8>(keys, key, head_dim, centre); break;
  }
  for (int d = 0; d < head_dim; ++d)
    if (!__builtin_isfinite(centre[d])) centre[d] = 0.0f;
}

float greatest_norm(const KeyList& keys, std::int64_t b, const HeadRows& key, int head_dim,
                    const float* centre) {
  const auto square = key.dtype == DType::float32    ? greatest_square<DType::float32>
                      : key.dtype == DType::bfloat16 ? greatest_square<DType::bfloat16>
                      : key.dtype == DType::float16  ? greatest_square<DType::float16>
                                                     : greatest_square<DType::int8>;
  return __builtin_sqrtf(square(keys, b, key, head_dim, centre)) + underflowed_norm;
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

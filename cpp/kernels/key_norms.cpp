#include "kernels/key_norms.h"

#include "kernels/constants.h"
#include "kernels/elements.h"
#include "kernels/key_list.h"
#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

namespace {

// sums[d .. d + Vectors * lanes) = the sum over the first `count` keys, each times `share`.
template <int Vectors>
void add_keys(const KeyList& keys, std::int64_t count, const void* key, std::int64_t key_stride,
              DType dtype, int d, float share, float* sums) {
  f32v sum[Vectors] = {};
  for (std::int64_t c = 0; c < count; ++c) {
    const char* row = row_at(key, key_stride, index_of(keys, c), dtype);
    for (int v = 0; v < Vectors; ++v)
      sum[v] += elements(row, d + v * lanes, dtype) * broadcast(share);
  }
  for (int v = 0; v < Vectors; ++v) store(sums + d + v * lanes, sum[v]);
}

// A constant dtype takes the choice of the conversion out of the loops.
template <DType dtype>
float greatest_square(const KeyList& keys, std::int64_t b, const void* key, std::int64_t key_stride,
                      int head_dim, const float* centre) {
  constexpr int rows_at_once = 4;  // which share the loads of the centre
  const int count = keys_in_block(keys, b);
  float greatest = 0.0f;
  for (int c = 0; c < count; c += rows_at_once) {
    const char* row[rows_at_once];
    for (int u = 0; u < rows_at_once; ++u) {
      const int real = c + u < count ? c + u : count - 1;
      row[u] = row_at(key, key_stride, index_of(keys, b * keys_per_block + real), dtype);
    }
    f32v squares[rows_at_once] = {};
    int d = 0;
    for (; d + lanes <= head_dim; d += lanes)
      for (int u = 0; u < rows_at_once; ++u) {
        const f32v x = elements(row[u], d, dtype) - load<f32v>(centre + d);
        squares[u] += x * x;
      }
    for (int u = 0; u < rows_at_once; ++u) {
      float sum = horizontal_sum(squares[u]);
      for (int rest = d; rest < head_dim; ++rest) {
        const float x = element(row[u], rest, dtype) - centre[rest];
        sum += x * x;
      }
      if (!(sum < infinity)) return infinity;  // for NaN, too: neither proves a bound
      if (sum > greatest) greatest = sum;
    }
  }
  return greatest;
}

}  // namespace

bool rows_are_finite(const void* rows, std::int64_t stride, std::int64_t count, int head_dim,
                     DType dtype) {
  f32v zeros = {};
  for (std::int64_t r = 0; r < count; ++r)
    zeros = add_zeros(zeros, row_at(rows, stride, r, dtype), head_dim, dtype);
  return is_finite(zeros);
}

void centre_of_keys(const KeyList& keys, const void* key, std::int64_t key_stride, int head_dim,
                    DType dtype, float* centre) {
  constexpr int vectors_at_once = 4;
  const std::int64_t count = keys.count < keys_in_centre ? keys.count : keys_in_centre;
  const float share = 1.0f / static_cast<float>(count);
  int d = 0;
  for (; d + vectors_at_once * lanes <= head_dim; d += vectors_at_once * lanes)
    add_keys<vectors_at_once>(keys, count, key, key_stride, dtype, d, share, centre);
  for (; d + lanes <= head_dim; d += lanes)
    add_keys<1>(keys, count, key, key_stride, dtype, d, share, centre);
  for (; d < head_dim; ++d) {
    centre[d] = 0.0f;
    for (std::int64_t c = 0; c < count; ++c)
      centre[d] += element(row_at(key, key_stride, index_of(keys, c), dtype), d, dtype) * share;
  }
  for (d = 0; d < head_dim; ++d)
    if (!__builtin_isfinite(centre[d])) centre[d] = 0.0f;
}

float greatest_norm(const KeyList& keys, std::int64_t b, const void* key, std::int64_t key_stride,
                    int head_dim, DType dtype, const float* centre) {
  const auto square = dtype == DType::float32    ? greatest_square<DType::float32>
                      : dtype == DType::bfloat16 ? greatest_square<DType::bfloat16>
                                                 : greatest_square<DType::float16>;
  return __builtin_sqrtf(square(keys, b, key, key_stride, head_dim, centre)) + underflowed_norm;
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

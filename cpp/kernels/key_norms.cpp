#include "kernels/key_norms.h"

#include "kernels/constants.h"
#include "kernels/elements.h"
#include "kernels/key_list.h"
#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

bool rows_are_finite(const void* rows, std::int64_t stride, std::int64_t count, int head_dim,
                     DType dtype) {
  for (std::int64_t r = 0; r < count; ++r)
    if (!all_finite(row_at(rows, stride, r, dtype), head_dim, dtype)) return false;
  return true;
}

void centre_of_keys(const KeyList& keys, const void* key, std::int64_t key_stride, int head_dim,
                    DType dtype, float* centre) {
  const std::int64_t count = keys.count < keys_in_centre ? keys.count : keys_in_centre;
  const float share = 1.0f / static_cast<float>(count);
  for (int d = 0; d < head_dim; ++d) centre[d] = 0.0f;
  for (std::int64_t c = 0; c < count; ++c) {
    const char* row = row_at(key, key_stride, index_of(keys, c), dtype);
    int d = 0;
    for (; d + lanes <= head_dim; d += lanes)
      store(centre + d, load<f32v>(centre + d) + elements(row, d, dtype) * broadcast(share));
    for (; d < head_dim; ++d) centre[d] += element(row, d, dtype) * share;
  }
  for (int d = 0; d < head_dim; ++d)
    if (!__builtin_isfinite(centre[d])) centre[d] = 0.0f;
}

float greatest_norm(const KeyList& keys, std::int64_t b, const void* key, std::int64_t key_stride,
                    int head_dim, DType dtype, const float* centre) {
  float greatest = 0.0f;
  for (int c = 0; c < keys_in_block(keys, b); ++c) {
    const char* row = row_at(key, key_stride, index_of(keys, b * keys_per_block + c), dtype);
    f32v squares = {};
    int d = 0;
    for (; d + lanes <= head_dim; d += lanes) {
      const f32v x = elements(row, d, dtype) - load<f32v>(centre + d);
      squares += x * x;
    }
    float sum = horizontal_sum(squares);
    for (; d < head_dim; ++d) {
      const float x = element(row, d, dtype) - centre[d];
      sum += x * x;
    }
    if (!(sum < infinity)) return infinity;  // for NaN, too: neither proves a bound
    if (sum > greatest) greatest = sum;
  }
  return __builtin_sqrtf(greatest) + underflowed_norm;
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

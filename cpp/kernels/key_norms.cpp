#include "kernels/key_norms.h"

#include "kernels/constants.h"
#include "kernels/elements.h"
#include "kernels/key_list.h"
#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

bool rows_are_finite(const void* rows, std::int64_t stride, std::int64_t count, int head_dim,
                     DType dtype) {
  f32v zeros = {};
  for (std::int64_t r = 0; r < count; ++r)
    zeros = add_zeros(zeros, row_at(rows, stride, r, dtype), head_dim, dtype);
  return is_finite(zeros);
}

float greatest_norm(const KeyList& keys, std::int64_t b, const void* key, std::int64_t key_stride,
                    int head_dim, DType dtype) {
  float greatest = 0.0f;
  for (int c = 0; c < keys_in_block(keys, b); ++c) {
    const char* row = row_at(key, key_stride, index_of(keys, b * keys_per_block + c), dtype);
    f32v squares = {};
    int d = 0;
    for (; d + lanes <= head_dim; d += lanes) {
      const f32v x = load_as_float(row, d, dtype);
      squares += x * x;
    }
    float sum = horizontal_sum(squares);
    for (; d < head_dim; ++d) sum += element(row, d, dtype) * element(row, d, dtype);
    if (!(sum < infinity)) return infinity;  // for NaN, too: neither proves a bound
    if (sum > greatest) greatest = sum;
  }
  return __builtin_sqrtf(greatest) + underflowed_norm;
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

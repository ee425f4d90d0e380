#include "kernels/key_norms.h"

#include "kernels/constants.h"
#include "kernels/elements.h"
#include "kernels/key_list.h"
#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

bool rows_are_finite(const HeadRows& rows, std::int64_t first, std::int64_t count, int head_dim) {
  f32v zeros = {};
  for (std::int64_t r = first; r < first + count; ++r) zeros = add_zeros(zeros, rows, r, head_dim);
  return is_finite(zeros);
}

float greatest_norm(const KeyList& keys, std::int64_t b, const HeadRows& key, int head_dim) {
  float greatest = 0.0f;
  for (int c = 0; c < keys_in_block(keys, b); ++c) {
    const std::int64_t index = index_of(keys, b * keys_per_block + c);
    const char* row = row_at(key, index);
    f32v squares = {};
    int d = 0;
    for (; d + lanes <= head_dim; d += lanes) {
      const f32v x = load_as_float(row, d, key.dtype);
      squares += x * x;
    }
    float sum = horizontal_sum(squares);
    for (; d < head_dim; ++d) sum += element(row, d, key.dtype) * element(row, d, key.dtype);
    if (key.scales != nullptr) sum *= key.scales[index] * key.scales[index];
    if (!(sum < infinity)) return infinity;  // for NaN, too: neither proves a bound
    if (sum > greatest) greatest = sum;
  }
  return __builtin_sqrtf(greatest) + underflowed_norm;
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

#include "kernels/merge.h"

#include "kernels/bias_bounds.h"
#include "kernels/elements.h"
#include "kernels/words.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {
namespace {

typedef double f64v __attribute__((vector_size(vector_bytes)));
typedef float half_f32v __attribute__((vector_size(vector_bytes / 2)));

// Channels that are summed at a time, in registers.
constexpr int doubles = lanes / 2;
constexpr int vectors_at_once = 8;
constexpr int channels_at_once = vectors_at_once * doubles;

// `count` channels from channel d on as float32, in place if there are enough to read.
const float* channels(const MergeRow& row, int part, int d, int count, float* converted) {
  const char* from = static_cast<const char*>(row.outputs[part]) + row_bytes(1, d, row.dtype);
  const float* values = as_float32(from, count, row.dtype, converted);
  if (count == channels_at_once || values == converted) return values;
  __builtin_memcpy(converted, values, count * sizeof(float));
  return converted;
}

}  // namespace

void merge_row(const MergeRow& row) {
  double greatest = -__builtin_inf();
  for (int part = 0; part < row.parts; ++part) greatest = larger(greatest, row.logsumexps[part]);
  const double reached = greatest == -__builtin_inf() ? 0.0 : greatest;
  double total = 0.0;
  for (int part = 0; part < row.parts; ++part) {
    row.weights[part] = __builtin_exp(row.logsumexps[part] - reached);
    total += row.weights[part];
  }
  const double inverse = total == 0.0 ? 0.0 : 1.0 / total;
  for (int d = 0; d < row.head_dim; d += channels_at_once) {
    const int count = row.head_dim - d < channels_at_once ? row.head_dim - d : channels_at_once;
    f64v sum[vectors_at_once] = {};
    for (int part = 0; part < row.parts; ++part) {
      const double weight = row.weights[part] * inverse;
      if (weight == 0.0) continue;  // such a part may hold NaN
      float converted[channels_at_once] = {};
      const float* values = channels(row, part, d, count, converted);
      NTK_ALIBI_UNROLL
      for (int v = 0; v < vectors_at_once; ++v)
        sum[v] += weight * __builtin_convertvector(load<half_f32v>(values + v * doubles), f64v);
    }
    float rounded[channels_at_once];
    NTK_ALIBI_UNROLL
    for (int v = 0; v < vectors_at_once; ++v)
      store(rounded + v * doubles, __builtin_convertvector(sum[v], half_f32v));
    write_row(rounded, count, row.dtype,
              static_cast<char*>(row.output) + row_bytes(1, d, row.dtype));
  }
  *row.logsumexp = total == 0.0 ? -__builtin_inf() : reached + __builtin_log(total);
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

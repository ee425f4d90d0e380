#include "kernels/merge.h"

#include "kernels/bias_bounds.h"
#include "kernels/elements.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {
namespace {

// Channels that are summed at a time.
constexpr int channels_at_once = 64;

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
    double sum[channels_at_once] = {};
    for (int part = 0; part < row.parts; ++part) {
      const double weight = row.weights[part] * inverse;
      if (weight == 0.0) continue;  // such a part may hold NaN
      float converted[channels_at_once];
      const float* values =
          as_float32(static_cast<const char*>(row.outputs[part]) + row_bytes(1, d, row.dtype),
                     count, row.dtype, converted);
      for (int c = 0; c < count; ++c) sum[c] += weight * static_cast<double>(values[c]);
    }
    float rounded[channels_at_once];
    for (int c = 0; c < count; ++c) rounded[c] = static_cast<float>(sum[c]);
    write_row(rounded, count, row.dtype,
              static_cast<char*>(row.output) + row_bytes(1, d, row.dtype));
  }
  *row.logsumexp = total == 0.0 ? -__builtin_inf() : reached + __builtin_log(total);
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

// Constants of the kernels that more than one file needs. benchmarks/results/skipping.md derives
// the error bounds.
#pragma once

#include "kernels/kernels.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

// Scores are in units of log 2, so that the softmax needs exp2 only.
constexpr double log2_e_double = 1.44269504088896340736;
constexpr float log2_e = static_cast<float>(log2_e_double);

constexpr float infinity = __builtin_inff();

// log2 of the number of keys in a block: a block weighs at most 2^this times its greatest weight.
constexpr double log2_keys_per_block = 6.0;
static_assert(keys_per_block == 64, "log2_keys_per_block is written out");

// u: the relative rounding error of one float32 operation.
constexpr double unit_roundoff = 1.0 / (1 << 24);

// Norms and slopes are float32 results of at most 70 additions in a row, or roots of sums of up to
// 256 squares, which halves their error; this factor covers them.
constexpr double rounding_slack = 1.0 + 1e-5;

// 16 u: bounds the rounding errors of a score, or of the logarithm of a sum, relative to itself.
// They are 4; a difference of two has 2 more; we count 16.
constexpr float relative_score_error = 1.0f / (1 << 20);

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

// The logsumexp that attention returns.
#pragma once

#include "kernels/constants.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

// The natural logsumexp from a maximum in the log2 domain, a sum relative to it, and the shift of
// all scores; -infinity for an empty sum.
inline double logsumexp(float maximum, float sum, double shift) {
  constexpr double ln_2 = 0.69314718055994530942;
  if (sum == 0.0f) return -infinity;
  return shift + ln_2 * maximum + __builtin_log(static_cast<double>(sum));
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

// 2^x for vectors, by one polynomial for every ISA.
#pragma once

#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

// 2^x for x <= 127, relative error below 8e-8; where the result would be subnormal (x < -126) the
// least normal number, or with Flush 0; NaN stays NaN.
template <bool Flush>
inline f32v exp2(f32v x) {
  const f32v lowest = broadcast(-126.0f);
  const f32v inside = max(lowest, x);
  const f32v rounder = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const f32v shifted = inside + rounder;
  const f32v fraction = inside - (shifted - rounder);
  // Degree 6 by weighted least squares, for the least relative error (1.9e-9) on [-1/2, 1/2].
  f32v power = broadcast(1.5345811790706232e-4f);
  power = power * fraction + broadcast(1.3399931422901576e-3f);
  power = power * fraction + broadcast(9.6184889596972103e-3f);
  power = power * fraction + broadcast(5.5503287764646053e-2f);
  power = power * fraction + broadcast(0.24022646890593272f);
  power = power * fraction + broadcast(0.69314720573749566f);
  power = power * fraction + broadcast(1.0f);
  // The integer sits in the low bits of `shifted`; it goes to the exponent.
  const f32v result = float_of(bits_of(power) + (bits_of(shifted) << 23));
  return Flush ? (x < lowest ? f32v{} : result) : result;
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

// 2^x for vectors.
#pragma once

#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

// 2^x for x <= 127, with a relative error below 1.3e-7 down to the least normal result; smaller
// results are 0 or rounded to the nearest subnormal. exp2(-infinity) is 0; NaN stays NaN.
#if defined(__AVX512F__) && defined(NTK_ALIBI_AMX)

// Intel's processors run all vectors of 64 bytes on the two units of the multiply-adds, so that the
// number of instructions counts. scalef rounds its exponent down itself.
inline f32v exp2(f32v x) {
  // The masked forms avoid a warning of g++ 12 about its own header.
  constexpr __mmask16 all = 0xffff;
  constexpr int from_floor = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const f32v fraction = (f32v)_mm512_maskz_reduce_ps(all, (__m512)x, from_floor);
  // 2^f on [0, 1], fitted for the least relative error (8.5e-9, and 6.2e-8 with rounding).
  f32v power = broadcast(2.1702254889532924e-4f);
  power = power * fraction + broadcast(1.2439695419743657e-3f);
  power = power * fraction + broadcast(9.678838774561882e-3f);
  power = power * fraction + broadcast(5.5483344942331314e-2f);
  power = power * fraction + broadcast(0.24022983014583588f);
  power = power * fraction + broadcast(0.6931470036506653f);
  power = power * fraction + broadcast(1.0f);
  return (f32v)_mm512_maskz_scalef_ps(all, (__m512)power, (__m512)x);
}

#elif defined(__AVX512F__)

// Reduction, table and scaling run on execution units that the multiply-adds of the products leave
// idle; only four instructions compete with the multiply-adds.
inline f32v exp2(f32v x) {
  alignas(64) static constexpr float sixteenths[] = {1.0f,
                                                     1.0442737340927124f,
                                                     1.0905077457427979f,
                                                     1.1387885808944702f,
                                                     1.1892070770263672f,
                                                     1.2418577671051025f,
                                                     1.2968395948410034f,
                                                     1.3542555570602417f,
                                                     1.4142135381698608f,
                                                     1.4768261909484863f,
                                                     1.5422108173370361f,
                                                     1.610490322113037f,
                                                     1.6817928552627563f,
                                                     1.7562521696090698f,
                                                     1.8340080976486206f,
                                                     1.9152065515518188f};
  // The masked forms avoid a warning of g++ 12 about its own header.
  constexpr __mmask16 all = 0xffff;
  constexpr int from_nearest_sixteenth = 4 << 4 | _MM_FROUND_NO_EXC;
  const f32v fraction = (f32v)_mm512_maskz_reduce_ps(all, (__m512)x, from_nearest_sixteenth);
  const f32v nearest = x - fraction;
  // Adding 1.5 * 2^19 brings the number of sixteenths to the low bits, which index the table.
  const i32v index = (i32v)(nearest + broadcast(786432.0f));
  const f32v step =
      (f32v)_mm512_maskz_permutexvar_ps(all, (__m512i)index, _mm512_load_ps(sixteenths));
  // 2^f - 1 on [-1/32, 1/32], fitted for the least relative error of 2^f (1.6e-9).
  f32v growth = broadcast(5.5502135306596756e-2f);
  growth = growth * fraction + broadcast(0.24023428559303284f);
  growth = growth * fraction + broadcast(0.6931471824645996f);
  growth = growth * fraction;
  return (f32v)_mm512_maskz_scalef_ps(all, (__m512)(step + step * growth), (__m512)nearest);
}

#else

inline f32v exp2(f32v x) {
  const f32v inside = max(broadcast(-127.0f), x);  // NaN stays
  // Adding 1.5 * 2^23 rounds to an integer n, in the low bits. 127 more make it the exponent of a
  // float, whose bits are 0 for n = -127.
  const f32v rounder = broadcast(12582912.0f + 127.0f);
  const f32v shifted = inside + rounder;
  const f32v fraction = inside - (shifted - rounder);
  // Degree 6, fitted by weighted least squares for the least relative error (1.9e-9) on
  // [-1/2, 1/2].
  const f32v square = fraction * fraction;
  const f32v low = broadcast(0.69314720573749566f) * fraction + broadcast(1.0f);
  const f32v middle =
      broadcast(5.5503287764646053e-2f) * fraction + broadcast(0.24022646890593272f);
  const f32v high =
      broadcast(1.3399931422901576e-3f) * fraction + broadcast(9.6184889596972103e-3f);
  const f32v power =
      ((broadcast(1.5345811790706232e-4f) * square + high) * square + middle) * square + low;
  return power * float_of(bits_of(shifted) << 23);
}

#endif

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

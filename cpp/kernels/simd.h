// Vectors of `lanes` floats for the ISA that this translation unit is built for. The vector
// extensions of GCC and Clang let one source serve every ISA. NTK_ALIBI_VECTOR_BYTES must be the
// register width of the ISA: wider vectors are legal but an order of magnitude slower.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

constexpr int vector_bytes = NTK_ALIBI_VECTOR_BYTES;
constexpr int lanes = vector_bytes / 4;

typedef float f32v __attribute__((vector_size(vector_bytes)));
typedef std::int32_t i32v __attribute__((vector_size(vector_bytes)));
typedef std::uint32_t u32v __attribute__((vector_size(vector_bytes)));
typedef std::uint16_t u16v __attribute__((vector_size(vector_bytes / 2)));
typedef std::int8_t i8v __attribute__((vector_size(vector_bytes / 4)));

// Storage types of 16-bit floats, as bit patterns.
struct bfloat16 {
  std::uint16_t bits;
};
struct float16 {
  std::uint16_t bits;
};

inline f32v broadcast(float x) { return x - f32v{}; }
inline i32v broadcast(std::int32_t x) { return x - i32v{}; }

inline i32v iota() {
  i32v v;
  for (int i = 0; i < lanes; ++i) v[i] = i;
  return v;
}

inline f32v to_float(i32v v) { return __builtin_convertvector(v, f32v); }
inline u32v bits_of(f32v v) { return (u32v)v; }
inline f32v float_of(u32v v) { return (f32v)v; }

template <class Vector, class T>
inline Vector load(const T* p) {
  Vector v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// As load, for rows that come from memory. Zen 4 does not foresee descending reads of whole cache
// lines, as vectors of 64 bytes are; it foresees halves.
#if defined(__AVX512F__)
inline f32v load_in_halves(const float* p) {
  const __m512 low = _mm512_castps256_ps512(_mm256_loadu_ps(p));
  return (f32v)_mm512_maskz_insertf32x8(0xffff, low, _mm256_loadu_ps(p + lanes / 2), 1);
}
#else
inline f32v load_in_halves(const float* p) { return load<f32v>(p); }
#endif

// The larger number of each pair; b if one of them is NaN.
#if defined(__AVX512F__)
inline f32v max(f32v a, f32v b) {
  // The masked form avoids a warning of g++ 12 about its own header.
  return (f32v)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
}
#elif defined(__AVX__)
inline f32v max(f32v a, f32v b) { return (f32v)_mm256_max_ps((__m256)a, (__m256)b); }
#else
inline f32v max(f32v a, f32v b) { return a > b ? a : b; }
#endif

#if defined(__AVX__)
inline float horizontal_sum(f32v v) {
#if defined(__AVX512F__)
  __m256 halves[2];  // the extraction intrinsic makes g++ 12 warn about its own header
  std::memcpy(halves, &v, sizeof v);
  const __m256 half = _mm256_add_ps(halves[0], halves[1]);
#else
  const __m256 half = (__m256)v;
#endif
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
#else
inline float horizontal_sum(f32v v) {
  float sum = 0.0f;
  for (int lane = 0; lane < lanes; ++lane) sum += v[lane];
  return sum;
}
#endif

// v - a b, rounded once where the ISA can, so that all loops round alike: clang contracts no
// product whose difference it moves behind the end of a branch.
#if defined(__AVX512F__)
inline f32v minus_product(f32v v, f32v a, f32v b) {
  return (f32v)_mm512_fnmadd_ps((__m512)a, (__m512)b, (__m512)v);
}
#elif defined(__FMA__)
inline f32v minus_product(f32v v, f32v a, f32v b) {
  return (f32v)_mm256_fnmadd_ps((__m256)a, (__m256)b, (__m256)v);
}
#else
inline f32v minus_product(f32v v, f32v a, f32v b) { return v - a * b; }
#endif

inline f32v magnitude(f32v v) { return float_of(bits_of(v) & 0x7fffffffu); }
inline double magnitude(double x) { return __builtin_fabs(x); }

// v where all bits of the mask are set, 0 where none is.
inline f32v masked(f32v v, i32v mask) { return float_of(bits_of(v) & (u32v)mask); }

// True if a lane of the mask is set; all bits of a lane are equal.
#if defined(__AVX512F__)
inline bool any(i32v mask) { return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0; }
#elif defined(__AVX__)
inline bool any(i32v mask) { return _mm256_movemask_ps((__m256)mask) != 0; }
#else
inline bool any(i32v mask) {
  std::int32_t bits = 0;
  for (int lane = 0; lane < lanes; ++lane) bits |= mask[lane];
  return bits != 0;
}
#endif

// --- conversion from the 16-bit formats, exact ---------------------------------------------------

inline float from_bfloat16(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Intrinsics are used because g++ 12 widens a vector in several pieces.
#if defined(__AVX512F__)
inline u32v widen(u16v v) { return (u32v)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)v); }
#elif defined(__AVX2__)
inline u32v widen(u16v v) { return (u32v)_mm256_cvtepu16_epi32((__m128i)v); }
#else
inline u32v widen(u16v v) { return __builtin_convertvector(v, u32v); }
#endif

#if defined(__AVX512F__)
inline f32v from_int8(i8v v) {
  return to_float((i32v)_mm512_maskz_cvtepi8_epi32(0xffff, (__m128i)v));
}
#elif defined(__AVX2__)
inline f32v from_int8(i8v v) {
  std::int64_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  return to_float((i32v)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(bits)));
}
#else
inline f32v from_int8(i8v v) { return to_float(__builtin_convertvector(v, i32v)); }
#endif

inline f32v from_bfloat16(u16v bits) { return float_of(widen(bits) << 16); }

#if defined(__AVX512F__)
inline f32v from_float16(u16v bits) { return (f32v)_mm512_maskz_cvtph_ps(0xffff, (__m256i)bits); }
#elif defined(__F16C__)
inline f32v from_float16(u16v bits) { return (f32v)_mm256_cvtph_ps((__m128i)bits); }
#else
inline f32v from_float16(u16v bits) {
  const u32v wide = widen(bits);
  const u32v magnitude = (wide & 0x7fffu) << 13;
  // The exponent's bias goes from 15 to 127. A subnormal gets the exponent of 2^-14 and loses 2^-14
  // again: no operand is a subnormal float, which may be flushed.
  constexpr float least_normal = 6.103515625e-05f;
  const u32v rebased = magnitude + ((127u - 15u) << 23);
  const u32v subnormal =
      bits_of(float_of(magnitude | (127u - 14u) << 23) - broadcast(least_normal));
  const u32v finite = magnitude < 0x00800000u ? subnormal : rebased;
  const u32v special = magnitude | 0x7f800000u;
  return float_of((magnitude >= 0x0f800000u ? special : finite) | (wide & 0x8000u) << 16);
}
#endif
inline float from_float16(std::uint16_t bits) { return from_float16(u16v{} + bits)[0]; }

// --- rounding to the 16-bit formats, nearest even; not for NaN -----------------------------------

// A bfloat16 in the upper half of each lane; the lower half is unspecified. A carry out of the
// largest finite value gives infinity, and infinity stays infinity.
inline u32v rounded_to_upper_half(f32v v) {
  const u32v bits = bits_of(v);
  return bits + 0x7fffu + ((bits >> 16) & 1u);
}

inline u16v to_bfloat16(f32v v) {
  return __builtin_convertvector(rounded_to_upper_half(v) >> 16, u16v);
}

#if defined(__AVX512F__)
// The masked form avoids a warning of g++ 12 about its own header.
inline u16v to_float16(f32v v) {
  constexpr __mmask16 all = 0xffff;
  return (u16v)_mm512_maskz_cvtps_ph(all, (__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#elif defined(__F16C__)
inline u16v to_float16(f32v v) {
  return (u16v)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#else
inline u16v to_float16(f32v v) {
  const u32v bits = bits_of(v);
  const u32v magnitude = bits & 0x7fffffffu;
  const u32v sign = (bits >> 16) & 0x8000u;
  // Normal results: move the exponent bias from 127 to 15 and round away the low 13 mantissa bits.
  // A carry out of the largest finite value gives infinity.
  const u32v normal = (magnitude + ((15u - 127u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal results (below 2^-14): adding 0.5 makes the float addition round at the last bit of
  // half precision.
  const u32v half = bits_of(broadcast(0.5f));
  const u32v subnormal = bits_of(float_of(magnitude) + broadcast(0.5f)) - half;
  const u32v infinity = u32v{} + 0x7c00u;
  const u32v finite = magnitude < 0x38800000u ? subnormal : normal;
  return __builtin_convertvector(sign | (magnitude >= 0x47800000u ? infinity : finite), u16v);
}
#endif

// --- stores of whole vectors; `stream` bypasses the caches and needs a vector-aligned address
// -----

template <class Out, class Vector>
inline void store(Out* p, Vector v) {
  std::memcpy(p, &v, sizeof v);
}

#if defined(__AVX512F__)
inline void stream_bytes(void* p, f32v v) { _mm512_stream_ps((float*)p, (__m512)v); }
inline void stream_bytes(void* p, u16v v) { _mm256_stream_si256((__m256i*)p, (__m256i)v); }
#elif defined(__AVX__)
inline void stream_bytes(void* p, f32v v) { _mm256_stream_ps((float*)p, (__m256)v); }
inline void stream_bytes(void* p, u16v v) { _mm_stream_si128((__m128i*)p, (__m128i)v); }
#elif defined(__SSE2__) && NTK_ALIBI_VECTOR_BYTES == 16
inline void stream_bytes(void* p, f32v v) { _mm_stream_ps((float*)p, (__m128)v); }
inline void stream_bytes(void* p, u16v v) { _mm_stream_si64((long long*)p, (long long)v); }
#else
template <class Vector>
inline void stream_bytes(void* p, Vector v) {
  std::memcpy(p, &v, sizeof v);
}
#endif

template <class Out, class Vector>
inline void stream(Out* p, Vector v) {
  stream_bytes(p, v);
}

inline void stream_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

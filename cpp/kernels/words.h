// Arithmetic on words of 32 bits: one float32 channel, or a pair of bfloat16 values.
#pragma once

#include "kernels/scratch.h"
#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

#define NTK_ALIBI_INLINE inline __attribute__((always_inline))

// Unrolls loops over arrays of vectors, which then stay in registers.
#if defined(__clang__)
#define NTK_ALIBI_UNROLL _Pragma("unroll")
#else
#define NTK_ALIBI_UNROLL _Pragma("GCC unroll 16")
#endif

NTK_ALIBI_INLINE f32v broadcast_word(const char* row, int word) {
  float bits;
  std::memcpy(&bits, row + sizeof bits * word, sizeof bits);
#if defined(__AVX512F__)
  return (f32v)_mm512_set1_ps(bits);  // copies bits; arithmetic would alter some NaNs
#else
  return broadcast(bits);
#endif
}

// float32 multiply-adds. 16-bit rows are converted before.
struct Float32Words {
  static constexpr bool in_matrices = false;
  static constexpr int channels_per_word = 1;
  static constexpr int keys_per_weight = 1;
  static constexpr bool queries_have_scale = true;

  static bool in_place(DType dtype) { return dtype == DType::float32; }
  static NTK_ALIBI_INLINE f32v multiply_add(f32v sum, f32v word, f32v packed) {
    return sum + word * packed;
  }
  // Channel c of the word.
  static NTK_ALIBI_INLINE f32v channel(f32v word, int) { return word; }
  static NTK_ALIBI_INLINE void store_weights(float* weights, int c, int v,
                                             const f32v (&weight)[keys_per_weight]) {
    store_vector(weights, c, v, weight[0]);
  }
  static NTK_ALIBI_INLINE void mask_weights(float* weights, int c, int v,
                                            const i32v (&mask)[keys_per_weight]) {
    store_vector(weights, c, v, masked(vector_of(weights, c, v), mask[0]));
  }
};

// Whether a tile may take products of bfloat16, which sum over so many channels. They flush values
// below 2^-126 to 0, which a greater scale would make matter.
inline bool suits_bfloat16(const AttentionTile& tile, int channels) {
  constexpr float greatest_scale = 1 << 20;
  return tile.key.dtype == DType::bfloat16 && tile.head_dim % channels == 0 &&
         tile.greatest_scale <= greatest_scale;
}

// Pairs of bfloat16: neighbouring channels for the scores, and neighbouring keys for the output.
struct Bfloat16Words {
  static constexpr int channels_per_word = 2;
  static constexpr int keys_per_weight = 2;
  static constexpr bool queries_have_scale = false;  // scaled queries would be rounded again
  static constexpr bool in_matrices = false;

  static bool in_place(DType) { return true; }
  static NTK_ALIBI_INLINE f32v multiply_add(f32v sum, f32v word, f32v packed) {
    return sum + channel(word, 0) * channel(packed, 0) + channel(word, 1) * channel(packed, 1);
  }
  static NTK_ALIBI_INLINE f32v channel(f32v word, int c) {
    return float_of(c == 0 ? bits_of(word) << 16 : bits_of(word) & 0xffff0000u);
  }
  static NTK_ALIBI_INLINE f32v pair(f32v even, f32v odd) {
    return float_of((bits_of(even) + 0x8000u) >> 16 | ((bits_of(odd) + 0x8000u) & 0xffff0000u));
  }
  // Packs two rows of weights into one row of pairs.
  static NTK_ALIBI_INLINE void store_weights(float* weights, int c, int v,
                                             const f32v (&weight)[keys_per_weight]) {
    store_vector(weights, c / 2, v, pair(weight[0], weight[1]));
  }
  static NTK_ALIBI_INLINE void mask_weights(float* weights, int c, int v,
                                            const i32v (&mask)[keys_per_weight]) {
    const i32v both = (mask[0] & 0xffff) | (mask[1] & ~0xffff);
    store_vector(weights, c / 2, v, masked(vector_of(weights, c / 2, v), both));
  }
};

// Products by matrix registers (matrix_products.h). head_dim must be a multiple of 32.
struct Bfloat16Matrices : Bfloat16Words {
  static constexpr bool in_matrices = true;
#if defined(__AVX512BW__)
  static NTK_ALIBI_INLINE void store_weights(float* weights, int c, int v,
                                             const f32v (&weight)[keys_per_weight]) {
    // The upper halves of even words go below the upper halves of odd words.
    const __m512i upper_half = _mm512_set4_epi32(0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302);
    const u32v even = bits_of(weight[0]) + 0x8000u, odd = bits_of(weight[1]) + 0x8000u;
    store_vector(weights, c / 2, v,
                 (f32v)_mm512_mask_shuffle_epi8((__m512i)odd, 0x3333333333333333u, (__m512i)even,
                                                upper_half));
  }
#endif
};

#if defined(__AVX512BF16__)

// Dot products of pairs, summed in float32. head_dim must be even.
struct Bfloat16Pairs : Bfloat16Words {
  static NTK_ALIBI_INLINE f32v multiply_add(f32v sum, f32v word, f32v packed) {
    return (f32v)_mm512_dpbf16_ps((__m512)sum, (__m512bh)word, (__m512bh)packed);
  }
  static NTK_ALIBI_INLINE void store_weights(float* weights, int c, int v,
                                             const f32v (&weight)[keys_per_weight]) {
    alignas(64) static constexpr std::uint16_t alternate[32] = {
        0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)weight[1], (__m512)weight[0]);
    const __m512i pairs = _mm512_permutexvar_epi16(_mm512_load_si512(alternate), halves);
    store_vector(weights, c / 2, v, (f32v)pairs);
  }
};

#endif

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

// Philox4x32-10 on vectors, after Salmon et al. 2011 (https://doi.org/10.1145/2063384.2063405): ten
// rounds of multiplications turn a counter and a key into random words, so that each weight's
// number can be had without those before it.
#pragma once

#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

// Vectors of 32-bit words in lanes of 64 bits. The upper halves hold anything.
typedef std::uint64_t u64v __attribute__((vector_size(vector_bytes)));

inline u64v broadcast(std::uint64_t x) { return x - u64v{}; }

// The products, of 64 bits, of words.
#if defined(__AVX512F__)
inline u64v multiply_words(u64v a, u64v b) {
  return (u64v)_mm512_maskz_mul_epu32(0xff, (__m512i)a, (__m512i)b);
}
#elif defined(__AVX2__)
inline u64v multiply_words(u64v a, u64v b) {
  return (u64v)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}
#elif defined(__SSE2__) && NTK_ALIBI_VECTOR_BYTES == 16
inline u64v multiply_words(u64v a, u64v b) { return (u64v)_mm_mul_epu32((__m128i)a, (__m128i)b); }
#else
inline u64v multiply_words(u64v a, u64v b) {
  constexpr std::uint64_t word = 0xffffffffu;
  return (a & word) * (b & word);
}
#endif

// The keys of the rounds.
struct PhiloxKeys {
  static constexpr int rounds = 10;
  std::uint64_t words[rounds][2];

  explicit PhiloxKeys(const std::uint32_t (&key)[2]) {
    constexpr std::uint32_t steps[] = {0x9E3779B9u, 0xBB67AE85u};
    for (std::uint32_t r = 0; r < rounds; ++r)
      for (int i = 0; i < 2; ++i) words[r][i] = static_cast<std::uint32_t>(key[i] + r * steps[i]);
  }
};

// Turns counters into random words.
inline void philox(const PhiloxKeys& keys, u64v (&x)[4]) {
  const u64v factors[] = {broadcast(std::uint64_t{0xD2511F53u}),
                          broadcast(std::uint64_t{0xCD9E8D57u})};
  for (const auto& key : keys.words) {
    const u64v first = multiply_words(x[0], factors[0]), second = multiply_words(x[2], factors[1]);
    x[0] = (second >> 32) ^ x[1] ^ broadcast(key[0]);
    x[1] = second;
    x[2] = (first >> 32) ^ x[3] ^ broadcast(key[1]);
    x[3] = first;
  }
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

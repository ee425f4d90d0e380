// The matrix registers of AMX: eight of 16 rows with 64 bytes each. Intel calls them tiles, a word
// that means tiles of queries here.
//
// The emulation has the same results to the bit, and lets every processor test what uses them.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

constexpr int matrix_rows = 16;
constexpr int matrix_row_bytes = 64;

#if defined(__x86_64__)

// The instructions, as assembly: compilers have them in macros that take literals only.
struct AmxRegisters {
  // Other libraries use these registers, too, so that a thread configures them for each use.
  static void configure() {
    struct alignas(64) Configuration {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } configuration;
    for (int i = 0; i < 8; ++i) {
      configuration.row_bytes[i] = matrix_row_bytes;
      configuration.rows[i] = matrix_rows;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(configuration));
  }
  static void release() { __asm__ volatile("tilerelease"); }

  template <int Register>
  static void zero() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(Register));
  }
  // Loads or stores 16 rows that are `stride` bytes apart.
  template <int Register>
  static void load(const void* rows, std::int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride), "i"(Register)
                     : "memory");
  }
  template <int Register>
  static void store(void* rows, std::int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(stride), "i"(Register)
                     : "memory");
  }
  // sum[m][n] += the sum over k of a[m][2 k] b[k][2 n] + a[m][2 k + 1] b[k][2 n + 1], for float32
  // sums and bfloat16 factors.
  template <int Sum, int A, int B>
  static void add_products() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(A), "i"(B));
  }
};

#endif

struct EmulatedRegisters {
  static void configure() { std::memset(registers(), 0, sizeof(Matrix) * 8); }
  static void release() {}

  template <int Register>
  static void zero() {
    std::memset(registers()[Register], 0, sizeof(Matrix));
  }
  template <int Register>
  static void load(const void* rows, std::int64_t stride) {
    for (int m = 0; m < matrix_rows; ++m)
      std::memcpy(registers()[Register][m], static_cast<const char*>(rows) + m * stride,
                  matrix_row_bytes);
  }
  template <int Register>
  static void store(void* rows, std::int64_t stride) {
    for (int m = 0; m < matrix_rows; ++m)
      std::memcpy(static_cast<char*>(rows) + m * stride, registers()[Register][m],
                  matrix_row_bytes);
  }
  // Products of bfloat16 are exact in float32. Products of even k have a sum, products of odd k
  // another, each in the order of k; both are then added to the sum. Subnormal values count as 0.
  template <int Sum, int A, int B>
  static void add_products() {
    for (int m = 0; m < matrix_rows; ++m) {
      f32v sums[2] = {};
      for (int k = 0; k < matrix_rows; ++k) {
        const u32v a = u32v{} + registers()[A][m][k];
        const u32v b = NTK_ALIBI_ISA::load<u32v>(registers()[B][k]);
        sums[0] = flushed(sums[0] + flushed(flushed(a << 16) * flushed(b << 16)));
        sums[1] = flushed(sums[1] + flushed(flushed(a & high) * flushed(b & high)));
      }
      const f32v sum = flushed(NTK_ALIBI_ISA::load<u32v>(registers()[Sum][m]));
      NTK_ALIBI_ISA::store(registers()[Sum][m], flushed(sum + flushed(sums[0] + sums[1])));
    }
  }

 private:
  using Matrix = std::uint32_t[matrix_rows][matrix_row_bytes / 4];
  static constexpr std::uint32_t high = 0xffff0000u;

  static Matrix* registers() {
    static thread_local Matrix all[8];
    return all;
  }
  static f32v flushed(f32v v) { return flushed(bits_of(v)); }
  static f32v flushed(u32v bits) {
    return float_of((bits & 0x7f800000u) == 0u ? bits & 0x80000000u : bits);
  }
};

#if defined(__x86_64__) && !defined(NTK_ALIBI_EMULATE_AMX)
using MatrixRegisters = AmxRegisters;
#else
using MatrixRegisters = EmulatedRegisters;
#endif

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

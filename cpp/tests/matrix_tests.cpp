// The emulation of matrix registers against sums in float64, and against the registers themselves
// where there are some.
#define NTK_ALIBI_ISA tested
#define NTK_ALIBI_VECTOR_BYTES 64
#pragma GCC diagnostic ignored "-Wpsabi"  // wide vectors stay within this file

#include <cmath>
#include <cstring>
#include <string>

#include "checks.h"
#include "core/isa.h"
#include "kernels/matrix_registers.h"

using namespace ntk_alibi;
using namespace ntk_alibi::NTK_ALIBI_ISA;

namespace {

struct Matrices {
  std::uint32_t a[16][16], b[16][16];
  float sums[16][16];
};

// Random values whose exponents differ by up to `exponents`, around 2^middle.
Matrices draw(std::uint32_t& state, unsigned middle, unsigned exponents) {
  const auto next = [&] { return state = state * 1664525u + 1013904223u; };
  const auto number = [&] {
    const std::uint32_t exponent = middle + (next() >> 8) % exponents - exponents / 2;
    return (next() & 0x80000000u) | exponent << 23 | (next() >> 9);
  };
  Matrices m;
  for (int i = 0; i < 256; ++i) {
    m.a[i / 16][i % 16] = number() >> 16 | (number() & 0xffff0000u);
    m.b[i / 16][i % 16] = number() >> 16 | (number() & 0xffff0000u);
    const std::uint32_t sum = number();
    std::memcpy(&m.sums[i / 16][i % 16], &sum, sizeof sum);
  }
  return m;
}

template <class Registers>
void add_products(Matrices& m) {
  Registers::configure();
  Registers::template load<0>(m.sums, matrix_row_bytes);
  Registers::template load<2>(m.a, matrix_row_bytes);
  Registers::template load<7>(m.b, matrix_row_bytes);
  Registers::template add_products<0, 2, 7>();
  Registers::template store<0>(m.sums, matrix_row_bytes);
  Registers::release();
}

double half(std::uint32_t pair, int odd) {
  const std::uint32_t bits = odd ? pair & 0xffff0000u : pair << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

[[maybe_unused]] bool have_registers() {
#if defined(__x86_64__) && !defined(NTK_ALIBI_EMULATE_AMX)
  for (const std::string& isa : available_isas())
    if (isa == "amx") return true;
#endif
  return false;
}

}  // namespace

void test_matrix_registers() {
  std::uint32_t state = 1;
  for (int round = 0; round < 200; ++round) {
    Matrices m = draw(state, 127, 1 + round % 20);
    const Matrices before = m;
    add_products<EmulatedRegisters>(m);
    int wrong = 0;
    for (int i = 0; i < 256; ++i) {
      double sum = before.sums[i / 16][i % 16], size = std::fabs(sum);
      for (int k = 0; k < 16; ++k)
        for (int odd = 0; odd < 2; ++odd) {
          const double product = half(before.a[i / 16][k], odd) * half(before.b[k][i % 16], odd);
          sum += product;
          size += std::fabs(product);
        }
      // 15 additions in each of two sums, and two more
      wrong += !(std::fabs(m.sums[i / 16][i % 16] - sum) <= 17 * std::ldexp(size, -24));
    }
    CHECK(wrong == 0);
  }
#if defined(__x86_64__)
  if (!have_registers()) return;
  // Exponents near the ends have products that are subnormal, infinite or NaN.
  for (unsigned middle : {127u, 64u, 70u, 5u, 185u, 250u}) {
    int different = 0;
    for (int round = 0; round < 200; ++round) {
      Matrices emulated = draw(state, middle, 9);
      Matrices computed = emulated;
      add_products<EmulatedRegisters>(emulated);
      add_products<AmxRegisters>(computed);
      for (int i = 0; i < 256; ++i) {
        const float e = emulated.sums[i / 16][i % 16], c = computed.sums[i / 16][i % 16];
        // The registers do not round a product before it is added: beyond float32's range they may
        // have infinity where the emulation has NaN.
        different +=
            !(std::memcmp(&e, &c, sizeof e) == 0 || !(std::isfinite(e) || std::isfinite(c)));
      }
    }
    CHECK(different == 0);
  }
#endif
}

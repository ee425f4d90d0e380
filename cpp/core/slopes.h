// ALiBi slopes as exponents: head h has slope 2^-exponent.
#pragma once

#include <cstdint>

namespace ntk_alibi {

enum class SlopeRule { press, geometric };

// press: with P the largest power of two <= H, the first P heads have the exponents 8h/P (h
// = 1..P), and the others 8(2i - 1)/(2P) (i = 1..H-P), the odd members of the next power's list.
// geometric: 8h/H for every H.
void alibi_exponents(std::int64_t num_heads, SlopeRule rule, double* exponents);

}  // namespace ntk_alibi

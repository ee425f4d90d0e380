// The 16-bit formats by their definition.
#pragma once

#include <cmath>
#include <cstdint>

inline double value_of(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                    : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return bits & 0x8000 ? -magnitude : magnitude;
}

// Rounds by search for the nearest value, ties to even.
inline std::uint16_t nearest_even(float x, int exponent_bits, int mantissa_bits) {
  const std::uint16_t infinity = ((1 << exponent_bits) - 1) << mantissa_bits;
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  // Positive patterns are ordered like their values. Infinity counts as the next power of two.
  int low = 0, high = infinity;
  const double magnitude = std::fabs(static_cast<double>(x));
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (value_of(middle, exponent_bits, mantissa_bits) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - value_of(low, exponent_bits, mantissa_bits);
  const double above = value_of(high, exponent_bits, mantissa_bits) - magnitude;
  const bool up = above < below || (above == below && low % 2 == 1);
  return sign | (up ? high : low);
}

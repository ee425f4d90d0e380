// Slopes, bias tensors, and through them the 16-bit formats.
#include <cstring>
#include <vector>

#include "checks.h"
#include "core/bias_tensor.h"
#include "formats.h"

using namespace ntk_alibi;

namespace {

std::vector<float> hard_floats() {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 0x7f80; ++high) {  // every bfloat16 and values around it
    for (std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu, 0x1000u,
                              0x0fffu, 0x2fffu, 0x3000u}) {
      const std::uint32_t bits = high << 16 | low;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      values.push_back(value);
    }
  }
  return values;
}

}  // namespace

void test_sixteen_bit_formats() {
  const std::vector<float> values = hard_floats();
  const std::int64_t count = values.size();
  std::vector<std::uint16_t> out(count);
  const QueryView slopes{values.data(), 0, 1, 0};
  for (int sign = 0; sign < 2; ++sign) {
    // Each head tests one value: at position 1 of a row of two keys, or at distance 1.
    const std::uint8_t mask[] = {1, 1};
    for (DType dtype : {DType::bfloat16, DType::float16}) {
      const int exponent_bits = dtype == DType::bfloat16 ? 8 : 5,
                mantissa_bits = 15 - exponent_bits;
      std::vector<std::uint16_t> pairs(2 * count);
      if (sign == 0) {
        key_bias({1, count, 2}, mask, slopes, Anchor::first, dtype, pairs.data());
      } else {
        relative_bias({1, count, 1, 2}, slopes, slopes, dtype, pairs.data());
      }
      int wrong = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        const float exact = sign == 0 ? values[i] : -values[i];
        wrong += pairs[2 * i + (sign == 0)] != nearest_even(exact, exponent_bits, mantissa_bits);
      }
      CHECK(wrong == 0);
    }
  }
}

void test_rows_of_every_length_and_alignment() {
  for (std::int64_t length = 0; length < 70; ++length) {
    for (int offset = 0; offset < 17; ++offset) {
      std::vector<float> out(length + 40, 7.0f);
      const float slope = 0.5f;
      relative_bias({1, 1, 1, length}, {&slope, 0, 0, 0}, {&slope, 0, 0, 0}, DType::float32,
                    out.data() + offset);
      bool right = true;
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(out.size()); ++i) {
        const std::int64_t k = i - offset;
        const float expected = k < 0 || k >= length ? 7.0f : -0.5f * (length - 1 - k);
        right = right && out[i] == expected;
      }
      CHECK(right);
    }
  }
}

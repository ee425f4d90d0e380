// Conversion between the storage types and float32: single elements and rows.
#pragma once

#include "kernels/kernels.h"
#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

inline float element(const void* row, std::int64_t d, DType dtype) {
  if (dtype == DType::float32) return static_cast<const float*>(row)[d];
  if (dtype == DType::int8) return static_cast<const std::int8_t*>(row)[d];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(row)[d];
  return dtype == DType::bfloat16 ? from_bfloat16(bits) : from_float16(bits);
}

// `lanes` elements from element d on.
inline f32v elements(const char* row, int d, DType dtype) {
  if (dtype == DType::float32) return load<f32v>(reinterpret_cast<const float*>(row) + d);
  if (dtype == DType::int8) return from_int8(load<i8v>(row + d));
  const u16v bits = load<u16v>(reinterpret_cast<const std::uint16_t*>(row) + d);
  return dtype == DType::bfloat16 ? from_bfloat16(bits) : from_float16(bits);
}

inline std::int64_t row_bytes(std::int64_t stride, std::int64_t row, DType dtype) {
  return row * stride * (dtype == DType::float32 ? 4 : dtype == DType::int8 ? 1 : 2);
}

inline const char* row_at(const void* rows, std::int64_t stride, std::int64_t row, DType dtype) {
  return static_cast<const char*>(rows) + row_bytes(stride, row, dtype);
}

inline const char* row_at(const HeadRows& rows, std::int64_t row) {
  return row_at(rows.data, rows.stride, row, rows.dtype);
}

// Returns a float32 row in place and converts others into `converted`.
inline const float* as_float32(const char* row, int head_dim, DType dtype, float* converted) {
  if (dtype == DType::float32) return reinterpret_cast<const float*>(row);
  int d = 0;
  for (; d + lanes <= head_dim; d += lanes) store(converted + d, elements(row, d, dtype));
  for (; d < head_dim; ++d) converted[d] = element(row, d, dtype);
  return converted;
}

inline const float* as_float32(const HeadRows& rows, std::int64_t row, int head_dim,
                               float* converted) {
  const float* numbers = as_float32(row_at(rows, row), head_dim, rows.dtype, converted);
  if (rows.scales == nullptr) return numbers;
  for (int d = 0; d < head_dim; ++d) converted[d] *= rows.scales[row];
  return converted;
}

inline bool all_finite(const char* row, int head_dim, DType dtype) {
  bool special = false;
  if (dtype == DType::float32) {
    u32v exponents = {};
    int d = 0;
    for (; d + lanes <= head_dim; d += lanes)
      exponents |= (u32v)((load<u32v>(row + sizeof(float) * d) & 0x7f800000u) == 0x7f800000u);
    for (int lane = 0; lane < lanes; ++lane) special |= exponents[lane] != 0;
    for (; d < head_dim; ++d) special |= !__builtin_isfinite(element(row, d, dtype));
    return !special;
  }
  const std::uint16_t exponent = dtype == DType::bfloat16 ? 0x7f80 : 0x7c00;
  const std::uint16_t* bits = reinterpret_cast<const std::uint16_t*>(row);
  for (int d = 0; d < head_dim; ++d) special |= (bits[d] & exponent) == exponent;
  return !special;
}

inline bool all_finite(const HeadRows& rows, std::int64_t row, int head_dim) {
  constexpr float greatest_int8 = 128.0f;
  if (rows.scales != nullptr) return __builtin_isfinite(rows.scales[row] * greatest_int8);
  return all_finite(row_at(rows, row), head_dim, rows.dtype);
}

// Rounds a row to nearest even. NaN stays NaN.
inline void write_row(const float* row, int head_dim, DType dtype, char* out) {
  if (dtype == DType::float32) {
    __builtin_memcpy(out, row, head_dim * sizeof(float));
    return;
  }
  std::uint16_t* bits = reinterpret_cast<std::uint16_t*>(out);
  for (int d = 0; d < head_dim; d += lanes) {
    const int count = head_dim - d < lanes ? head_dim - d : lanes;
    f32v wide = {};
    __builtin_memcpy(&wide, row + d, count * sizeof(float));
    const u16v narrow = dtype == DType::bfloat16 ? to_bfloat16(wide) : to_float16(wide);
    __builtin_memcpy(bits + d, &narrow, count * sizeof(std::uint16_t));
    for (int lane = 0; lane < count; ++lane)
      if (row[d + lane] != row[d + lane]) bits[d + lane] = 0x7fff;
  }
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

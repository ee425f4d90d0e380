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
  if (dtype == DType::float32) return load_in_halves(reinterpret_cast<const float*>(row) + d);
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
  const float* unscaled = as_float32(row_at(rows, row), head_dim, rows.dtype, converted);
  if (rows.scales == nullptr) return unscaled;
  for (int d = 0; d < head_dim; ++d) converted[d] *= rows.scales[row];
  return converted;
}

// Returns the sum of 0 x over the entries x of the row: NaN if one is infinite or NaN.
inline f32v sum_of_zeros(const char* row, int head_dim, DType dtype) {
  f32v sum = {};
  int d = 0;
  for (; d + lanes <= head_dim; d += lanes) sum += elements(row, d, dtype) * 0.0f;
  for (; d < head_dim; ++d) sum[0] += element(row, d, dtype) * 0.0f;
  return sum;
}

inline f32v sum_of_zeros(const HeadRows& rows, std::int64_t row, int head_dim) {
  if (rows.scales == nullptr) return sum_of_zeros(row_at(rows, row), head_dim, rows.dtype);
  constexpr float greatest_int8 = 128.0f;
  return broadcast(rows.scales[row] * greatest_int8 * 0.0f);
}

inline bool is_finite(f32v zeros) { return horizontal_sum(zeros) == 0.0f; }

inline float dot(const float* a, const float* b, int count) {
  f32v sums = {};
  int d = 0;
  for (; d + lanes <= count; d += lanes) sums += load<f32v>(a + d) * load<f32v>(b + d);
  float sum = horizontal_sum(sums);
  for (; d < count; ++d) sum += a[d] * b[d];
  return sum;
}

// As dot, summed in float64.
inline double dot_in_float64(const float* a, const float* b, int count) {
  constexpr int chains = 8;
  double sums[chains] = {};
  int d = 0;
  for (; d + chains <= count; d += chains)
    for (int i = 0; i < chains; ++i) sums[i] += static_cast<double>(a[d + i]) * b[d + i];
  for (; d < count; ++d) sums[0] += static_cast<double>(a[d]) * b[d];
  double sum = 0.0;
  for (int i = 0; i < chains; ++i) sum += sums[i];
  return sum;
}

// Stores `lanes` values from channel d on, rounded to nearest even. NaN stays NaN.
inline void store_rounded(f32v wide, DType dtype, char* row, int d) {
  if (dtype == DType::float32) return store(reinterpret_cast<float*>(row) + d, wide);
  const u16v nan = u16v{} + static_cast<std::uint16_t>(0x7fff);
  const u16v narrow = dtype == DType::bfloat16 ? to_bfloat16(wide) : to_float16(wide);
  const u16v is_nan = __builtin_convertvector((u32v)(wide != wide), u16v);
  store(reinterpret_cast<std::uint16_t*>(row) + d, (narrow & ~is_nan) | (nan & is_nan));
}

// Stores a row, rounded to nearest even. NaN stays NaN.
inline void write_row(const float* row, int head_dim, DType dtype, void* to) {
  char* out = static_cast<char*>(to);
  int d = 0;
  for (; d + lanes <= head_dim; d += lanes) store_rounded(load<f32v>(row + d), dtype, out, d);
  if (d == head_dim) return;
  float rest[lanes] = {};
  alignas(f32v) char rounded[sizeof(f32v)];
  const int bytes = dtype == DType::float32 ? 4 : 2;
  __builtin_memcpy(rest, row + d, (head_dim - d) * sizeof(float));
  store_rounded(load<f32v>(rest), dtype, rounded, 0);
  __builtin_memcpy(out + d * bytes, rounded, (head_dim - d) * bytes);
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

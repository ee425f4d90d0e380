// Views of the caller's tensors. Strides are in elements.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace ntk_alibi {

inline std::int64_t element_size(DType dtype) {
  return dtype == DType::float32 ? 4 : dtype == DType::int8 ? 1 : 2;
}

// A tensor (batch, heads, rows, head_dim). The elements of a row are adjacent.
struct TensorView {
  void* data;
  std::int64_t batch_stride;
  std::int64_t head_stride;
  std::int64_t row_stride;
};

// The address of a row.
inline void* row_of(const TensorView& view, DType dtype, std::int64_t b, std::int64_t h,
                    std::int64_t row) {
  return static_cast<char*>(view.data) +
         element_size(dtype) *
             (b * view.batch_stride + h * view.head_stride + row * view.row_stride);
}

// Scales (batch, heads, rows) of int8 rows, adjacent for the rows of a head. Without data, the rows
// are of another dtype and have none.
struct ScaleView {
  const float* data;
  std::int64_t batch_stride;
  std::int64_t head_stride;
};

// The rows of a head of keys or values, of `dtype` unless they have scales.
inline HeadRows head_rows(const TensorView& view, const ScaleView& scales, DType dtype,
                          std::int64_t b, std::int64_t h) {
  if (scales.data == nullptr)
    return {row_of(view, dtype, b, h, 0), view.row_stride, dtype, nullptr};
  return {row_of(view, DType::int8, b, h, 0), view.row_stride, DType::int8,
          scales.data + b * scales.batch_stride + h * scales.head_stride};
}

// One value for each query, (batch, heads, queries). A stride of 0 broadcasts an axis.
struct QueryView {
  const float* data;
  std::int64_t batch_stride;
  std::int64_t head_stride;
  std::int64_t query_stride;
};

inline float value_at(const QueryView& view, std::int64_t b, std::int64_t h, std::int64_t q) {
  return view.data[b * view.batch_stride + h * view.head_stride + q * view.query_stride];
}

// Positions (batch, length). A batch stride of 0 shares one row. Without data, positions are
// consecutive, and the last query is at the last key.
struct PositionView {
  const std::int32_t* data;
  std::int64_t batch_stride;
};

}  // namespace ntk_alibi

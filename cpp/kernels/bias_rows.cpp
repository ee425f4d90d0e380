// Writing rows of bias tensors at the speed of memory.
#include "kernels/bias_rows.h"

#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {
namespace {

// value(k) gives the `lanes` values from element k on; Out is the storage type.
template <class Out, class Value>
void write_row(std::int64_t count, bool stream_stores, Out* out, Value value) {
  const auto write_tail = [&](std::int64_t begin, std::int64_t end) {
    if (begin >= end) return;
    Out rounded[lanes];
    store(rounded, value(begin));
    std::memcpy(out + begin, rounded, (end - begin) * sizeof(Out));
  };
  std::int64_t k = 0;
  if (stream_stores) {
    constexpr std::uintptr_t block_bytes = lanes * sizeof(Out);
    const std::uintptr_t misaligned = reinterpret_cast<std::uintptr_t>(out) % block_bytes;
    const std::int64_t to_boundary = misaligned ? (block_bytes - misaligned) / sizeof(Out) : 0;
    k = to_boundary < count ? to_boundary : count;
    write_tail(0, k);
    for (; k + lanes <= count; k += lanes) stream(out + k, value(k));
  } else {
    for (; k + lanes <= count; k += lanes) store(out + k, value(k));
  }
  write_tail(k, count);
}

template <class Row>
void write_row_as(DType dtype, std::int64_t count, bool stream_stores, void* out, Row value) {
  switch (dtype) {
    case DType::float32: return write_row(count, stream_stores, static_cast<float*>(out), value);
    case DType::bfloat16:
      return write_row(count, stream_stores, static_cast<bfloat16*>(out), value);
    case DType::float16: return write_row(count, stream_stores, static_cast<float16*>(out), value);
  }
}

}  // namespace

void scaled_positions(const std::int32_t* positions, std::int64_t key_length, float slope,
                      DType dtype, bool stream_stores, void* out) {
  const f32v slopes = broadcast(slope);
  // Reads whole vectors: the core pads `positions` by one.
  write_row_as(dtype, key_length, stream_stores, out,
               [=](std::int64_t k) { return slopes * to_float(load<i32v>(positions + k)); });
}

void linear_bias_row(const LinearBiasRow& row, DType dtype, bool stream_stores, void* out) {
  const f32v left = broadcast(-row.left_slope);
  const f32v right = broadcast(row.right_slope);
  const f32v zero = {};
  const i32v lane = iota();
  const std::int64_t query_position = row.query_position;
  write_row_as(dtype, row.key_length, stream_stores, out, [=](std::int64_t k) {
    const i32v distance = broadcast(static_cast<std::int32_t>(query_position - k)) - lane;
    const f32v bias = to_float(distance) * (distance > 0 ? left : right);
    return distance == 0 ? zero : bias;  // 0 * inf is NaN where a side is masked
  });
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

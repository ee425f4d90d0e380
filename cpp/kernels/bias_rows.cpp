// Rows of bias tensors, written at the speed of memory.
#include "kernels/bias_rows.h"

#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {
namespace {

// Rows are written in lines of one register of elements of the storage type.
template <class Out>
constexpr int line_length = vector_bytes / static_cast<int>(sizeof(Out));

// Writes the elements k .. k + line_length - 1 of a row.
template <bool Stream, class Row>
void write_line(const Row& row, std::int64_t k, float* out) {
  const f32v line = row.consecutive(k);
  Stream ? stream(out, line) : store(out, line);
}

template <bool Stream, class Out>
void write_halves(u16v first, u16v second, Out* out) {
  Stream ? stream(out, first) : store(out, first);
  Stream ? stream(out + lanes, second) : store(out + lanes, second);
}

template <bool Stream, class Row>
void write_line(const Row& row, std::int64_t k, float16* out) {
  write_halves<Stream>(to_float16(row.consecutive(k)), to_float16(row.consecutive(k + lanes)), out);
}

// A lane of 32 bits takes an even element and its odd neighbour, which saves narrowing:
//
//   lane         0                  1
//   even    [k      |.....]    [k + 2  |.....]    upper halves hold the rounded values, lower ones
//   odd     [k + 1  |.....]    [k + 3  |.....]    what rounding leaves
//   line    [k + 1  |k    ]    [k + 3  |k + 2]
//   memory   k  k + 1           k + 2  k + 3      lower halves first: ISAs here are little-endian
template <bool Stream, class Row>
void write_line(const Row& row, std::int64_t k, bfloat16* out) {
  const u32v even = rounded_to_upper_half(row.every_second(k));
  const u32v odd = rounded_to_upper_half(row.every_second(k + 1));
  const f32v line = float_of((even >> 16) | (odd & 0xffff0000u));
  Stream ? stream(out, line) : store(out, line);
}

// Writes the ends of a row, where a line would not fit.
template <class Out, class Row>
void write_part(const Row& row, std::int64_t begin, std::int64_t end, Out* out) {
  for (; begin < end; begin += line_length<Out>) {
    const std::int64_t count = end - begin < line_length<Out> ? end - begin : line_length<Out>;
    Out line[line_length<Out>];
    write_line<false>(row, begin, line);
    std::memcpy(out + begin, line, count * sizeof(Out));
  }
}

template <bool Stream, class Out, class Row>
void write_lines(const Row& row, std::int64_t begin, std::int64_t end, Out* out) {
  for (std::int64_t k = begin; k < end; k += line_length<Out>) write_line<Stream>(row, k, out + k);
}

// The number of elements before the first address that is aligned for streamed stores.
template <class Out>
std::int64_t elements_to_boundary(const Out* out) {
  const std::uintptr_t misaligned = reinterpret_cast<std::uintptr_t>(out) % vector_bytes;
  return misaligned ? (vector_bytes - misaligned) / sizeof(Out) : 0;
}

template <class Out>
std::int64_t last_line_end(std::int64_t first, std::int64_t count) {
  return first + (count - first) / line_length<Out> * line_length<Out>;
}

std::int64_t at_most(std::int64_t value, std::int64_t limit) {
  return value < limit ? value : limit;
}

template <bool Stream, class Out, class Row>
void write_row(const Row& row, std::int64_t count, Out* out) {
  const std::int64_t first = Stream ? at_most(elements_to_boundary(out), count) : 0;
  const std::int64_t last = last_line_end<Out>(first, count);
  write_part(row, 0, first, out);
  row.template write_lines_between<Stream>(first, last, out);
  write_part(row, last, count, out);
}

template <class Row>
void write_row_as(DType dtype, const Row& row, std::int64_t count, bool streamed, void* out) {
  const auto write = [&](auto* typed) {
    streamed ? write_row<true>(row, count, typed) : write_row<false>(row, count, typed);
  };
  switch (dtype) {
    case DType::float32: return write(static_cast<float*>(out));
    case DType::bfloat16: return write(static_cast<bfloat16*>(out));
    case DType::float16: return write(static_cast<float16*>(out));
    case DType::int8: return;  // for keys and values only
  }
}

// slope * positions[k]. It reads whole lines, so the core pads `positions` by two vectors.
struct PositionsRow {
  const std::int32_t* positions;
  f32v slope;

  f32v consecutive(std::int64_t k) const { return slope * to_float(load<i32v>(positions + k)); }

  template <bool Stream, class Out>
  void write_lines_between(std::int64_t begin, std::int64_t end, Out* out) const {
    write_lines<Stream>(*this, begin, end, out);
  }
};

// Positions are consecutive in memory: gathering every second one would cost more than narrowing.
template <bool Stream>
void write_line(const PositionsRow& row, std::int64_t k, bfloat16* out) {
  write_halves<Stream>(to_bfloat16(row.consecutive(k)), to_bfloat16(row.consecutive(k + lanes)),
                       out);
}

// slope * (query_position - k): one side of a linear bias. The slope has the sign of the side.
struct OneSide {
  std::int64_t query_position;
  f32v slope;

  f32v strided(std::int64_t k, int step) const {
    return to_float(broadcast(static_cast<std::int32_t>(query_position - k)) - step * iota()) *
           slope;
  }
  f32v consecutive(std::int64_t k) const { return strided(k, 1); }
  f32v every_second(std::int64_t k) const { return strided(k, 2); }
};

struct LinearRow {
  OneSide left, right;

  f32v strided(std::int64_t k, int step) const {
    const i32v distance =
        broadcast(static_cast<std::int32_t>(left.query_position - k)) - step * iota();
    const f32v bias = to_float(distance) * (distance > 0 ? left.slope : right.slope);
    return distance == 0 ? f32v{} : bias;  // 0 * inf is NaN where a side is masked
  }
  f32v consecutive(std::int64_t k) const { return strided(k, 1); }
  f32v every_second(std::int64_t k) const { return strided(k, 2); }

  // Only the line that contains the position of the query has two sides.
  template <bool Stream, class Out>
  void write_lines_between(std::int64_t begin, std::int64_t end, Out* out) const {
    const std::int64_t query = left.query_position;
    const std::int64_t behind =
        query <= begin ? begin : at_most(last_line_end<Out>(begin, query), end);
    const std::int64_t ahead = query < behind ? behind : at_most(behind + line_length<Out>, end);
    write_lines<Stream>(left, begin, behind, out);
    write_lines<Stream>(*this, behind, ahead, out);
    write_lines<Stream>(right, ahead, end, out);
  }
};

}  // namespace

void scaled_positions(const std::int32_t* positions, std::int64_t key_length, float slope,
                      DType dtype, bool streamed, void* out) {
  write_row_as(dtype, PositionsRow{positions, broadcast(slope)}, key_length, streamed, out);
}

void linear_bias_row(const LinearBiasRow& row, DType dtype, bool streamed, void* out) {
  const LinearRow linear{{row.query_position, broadcast(-row.left_slope)},
                         {row.query_position, broadcast(row.right_slope)}};
  write_row_as(dtype, linear, row.key_length, streamed, out);
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

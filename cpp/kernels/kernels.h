// The contract between the core and the per-ISA kernels: plain structs and one table of functions.
// Nothing here may have inline members: the header is compiled with different instruction sets, and
// the linker would keep one of the copies.
#pragma once

#include <cstdint>

namespace ntk_alibi {

enum class DType : int { float32 = 0, bfloat16 = 1, float16 = 2 };

// One row of a linear bias over distance. With d = query_position - k:
//   out[k] = -left_slope * d  for d > 0,   0 for d = 0,   right_slope * d  for d < 0.
// An infinite slope masks its side: the value there is -inf.
struct LinearBiasRow {
  float left_slope;
  float right_slope;
  std::int64_t query_position;
  std::int64_t key_length;
};

struct KernelTable {
  // out[k] = slope * positions[k], k < key_length, rounded to nearest even.
  void (*scaled_positions)(const std::int32_t* positions, std::int64_t key_length, float slope,
                           DType dtype, bool stream, void* out);
  void (*linear_bias_row)(const LinearBiasRow& row, DType dtype, bool stream, void* out);
  // Makes streamed stores visible to other threads; to be called by the thread that streamed.
  void (*stream_fence)();
};

}  // namespace ntk_alibi

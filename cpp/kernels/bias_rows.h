// Rows of bias tensors. kernels.h documents the functions.
#pragma once

#include "kernels/kernels.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

void scaled_positions(const std::int32_t* positions, std::int64_t key_length, float slope,
                      DType dtype, bool stream_stores, void* out);
void linear_bias_row(const LinearBiasRow& row, DType dtype, bool stream_stores, void* out);

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi

// Norms of keys. kernels.h documents the functions.
#pragma once

#include "kernels/kernels.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

bool rows_are_finite(const void* rows, std::int64_t stride, std::int64_t count, int head_dim,
                     DType dtype);
void centre_of_keys(const KeyList& keys, const void* key, std::int64_t key_stride, int head_dim,
                    DType dtype, float* centre);
float greatest_norm(const KeyList& keys, std::int64_t b, const void* key, std::int64_t key_stride,
                    int head_dim, DType dtype, const float* centre);

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi
